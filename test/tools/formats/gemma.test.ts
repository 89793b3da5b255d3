import { expect, test } from "bun:test";
import { gemma } from "../../../src/tools/formats/gemma.ts";
import { call, content, read } from "../messages.ts";

const parisCall = call("get_weather", '{"city": "Paris"}');

test("calls in a fence are read wherever it stands", () => {
  const fence = "```tool_code\nget_weather(city='Paris')\nnow()\n```";
  expect(read(gemma, `I look.\n\n${fence}\nDone.`)).toEqual([
    content("I look."),
    parisCall,
    call("now", "{}"),
    content("Done."),
  ]);
  expect(read(gemma, `\`${fence}`)).toEqual([content("`"), parisCall, call("now", "{}")]);
  expect(read(gemma, "```tool_code\n[get_weather(city='Paris')]\n```")).toEqual([parisCall]);
});

test("a list or an object of JSON is read as the whole message", () => {
  expect(read(gemma, '[get_weather(city="Paris"), now()]')).toEqual([parisCall, call("now", "{}")]);
  expect(read(gemma, '{"name": "get_weather", "parameters": {"city": "Paris"}}')).toEqual([
    parisCall,
  ]);
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
    expect(read(gemma, text)).toEqual([content(text)]);
  }
});
