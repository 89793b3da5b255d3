import { describe, expect, test } from "bun:test";
import { withSystemFirst } from "../../src/conversation/late-system.ts";
import { type ChatInput, chatTemplate } from "../../src/text/template/template.ts";
import type { TextModel } from "../../src/text/text-model.ts";

/** A model that has only a template. */
function modelOf(jinja: string): TextModel {
  const template = chatTemplate({ jinja })!;
  const chat = (input: ChatInput) => ({ text: template.render(input), ids: [] });
  return { chat } as unknown as TextModel;
}

const turn = "[{{ message.role }}: {{ message.content }}]";
const each = (body: string) => `{% for message in messages %}${body}{% endfor %}`;
const anywhere = modelOf(each(turn));
const refusing = modelOf(
  each(
    `{% if message.role == "system" and not loop.first %}{{ raise_exception("first!") }}{% endif %}${turn}`,
  ),
);
const dropping = modelOf(each(`{% if message.role != "system" or loop.first %}${turn}{% endif %}`));

const messagesOf = (...turns: string[]) =>
  turns.map((text) => {
    const [role, content] = text.split(": ");
    return { role: role!, content: content! };
  });

const agent = messagesOf("system: a", "user: b", "system: c", "assistant: d", "user: e");

describe("messages of the system after the first", () => {
  test("stay as they are where the template takes them", () => {
    expect(withSystemFirst(agent, anywhere)).toBe(agent);
  });

  test("stay as they are where there is one at most", () => {
    const one = messagesOf("system: a", "user: b");
    expect(withSystemFirst(one, refusing)).toBe(one);
  });

  test.each([
    ["refuses", refusing],
    ["drops", dropping],
  ])("become the user's where the template %s them, in their place", (_, model) => {
    const joined = (...turns: string[]) => withSystemFirst(messagesOf(...turns), model);
    expect(withSystemFirst(agent, model)).toEqual(
      messagesOf("system: a", "user: b\n\nc", "assistant: d", "user: e"),
    );
    // Those at the beginning are one.
    expect(joined("developer: a", "system: b", "user: c")).toEqual(
      messagesOf("developer: a\n\nb", "user: c"),
    );
    // Turns alternate as before.
    expect(joined("user: a", "assistant: b", "system: c", "user: d")).toEqual(
      messagesOf("user: a", "assistant: b", "user: c\n\nd"),
    );
    expect(joined("user: a", "tool: b", "system: c")).toEqual(
      messagesOf("user: a", "tool: b", "user: c"),
    );
    // What the client has sent in two stays in two.
    expect(joined("user: a", "user: b", "system: c", "assistant: d", "user: e", "user: f")).toEqual(
      messagesOf("user: a", "user: b\n\nc", "assistant: d", "user: e", "user: f"),
    );
    expect(joined("system: a", "system: b")).toEqual(messagesOf("system: a\n\nb"));
  });
});
