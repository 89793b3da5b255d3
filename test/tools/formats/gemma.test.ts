import { test } from "bun:test";
import { gemma } from "../../../src/tools/formats/gemma.ts";
import { call, expectRead, nowCall } from "../messages.ts";

const parisCall = call("get_weather", '{"city": "Paris"}');

test("calls in a fence are read wherever it stands", () => {
  const fence = "```tool_code\nget_weather(city='Paris')\nnow()\n```";
  expectRead(gemma, `I look.\n\n${fence}\nDone.`, ["I look.", parisCall, nowCall, "Done."]);
  expectRead(gemma, `\`${fence}`, ["`", parisCall, nowCall]);
  expectRead(gemma, "```tool_code\n[get_weather(city='Paris')]\n```", [parisCall]);
});

test("a list or an object of JSON is read as the whole message", () => {
  expectRead(gemma, '[get_weather(city="Paris"), now()]', [parisCall, nowCall]);
  expectRead(gemma, '{"name": "get_weather", "parameters": {"city": "Paris"}}', [parisCall]);
});

test("other fences, and what is garbled in ours, are content", () => {
  for (const text of [
    "```python\nnow()\n```",
    "```tool_code\nprint(now())\n```",
    "```tool_code\nf()\n```",
    "```tool_code\n```",
    "```tool_code\nnow()",
    "``` ```tool_cod",
    'Like so: {"name": "now", "parameters": {}}',
  ]) {
    expectRead(gemma, text, [text]);
  }
});
