import { describe, expect, test } from "bun:test";
import {
  type ChatInput,
  type ChatTemplate,
  chatTemplate,
  strftime,
  TemplateError,
  type TemplateSources,
} from "../../../src/text/template/template.ts";
import { millisecondsOf, readGolden } from "../corpus.ts";

type Chat = ChatInput & {
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
  enable_thinking?: boolean;
};

interface Goldens {
  named_tokens: Record<string, string>;
  chats: Record<string, Chat>;
  cases: { template: string; chat: string; text?: string; error?: string }[];
}

const goldens = await readGolden<Goldens>("chats.json");
const sources = await readGolden<Record<string, string>>("templates.json");
const expressions = await readGolden<{
  given: Record<string, unknown>;
  cases: { source: string; text: string }[];
}>("expressions.json");

function template(source: string | TemplateSources): ChatTemplate {
  const from = typeof source === "string" ? { jinja: source } : source;
  return chatTemplate(from, { namedTokens: goldens.named_tokens })!;
}

function input(chat: Chat): ChatInput {
  const { messages, tools, enable_thinking, add_generation_prompt, continue_final_message } = chat;
  return {
    messages,
    tools,
    addGenerationPrompt: add_generation_prompt ?? false,
    continueFinalMessage: continue_final_message ?? false,
    kwargs: enable_thinking === undefined ? {} : { enable_thinking },
  };
}

function faultOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof TemplateError) return error.fault;
    throw error;
  }
  return "none";
}

describe("transformers renders the same", () => {
  for (const name of Object.keys(sources)) {
    test(`for ${name}`, () => {
      const cases = goldens.cases.filter((each) => each.template === name);
      expect(cases.length).toBe(Object.keys(goldens.chats).length);
      for (const { chat, text, error } of cases) {
        const render = () => template(sources[name]!).render(input(goldens.chats[chat]!));
        if (error === "TemplateError") expect(faultOf(render)).toBe("raised");
        // transformers fails if a template moves the thought of the message to continue.
        else if (error === "ValueError") expect(render()).toEndWith(" And you?  ");
        else expect(render()).toBe(text!);
      }
    });
  }
});

describe("a template", () => {
  const hi = { messages: [{ role: "user", content: "hi" }] };

  test("is found in each of the files that may hold one", () => {
    expect(chatTemplate({})).toBeUndefined();
    expect(template({ config: { chat_template: "c" } }).render(hi)).toBe("c");
    expect(template({ gguf: "g" }).render(hi)).toBe("g");
    expect(template({ config: { chat_template: "c" }, jinja: "j" }).render(hi)).toBe("j");
  });

  test("for tools is taken where there are tools", () => {
    const chat_template = [
      { name: "default", template: "plain" },
      { name: "tool_use", template: "tools" },
    ];
    const named = template({ config: { chat_template } });
    expect(named.render(hi)).toBe("plain");
    expect(named.render({ ...hi, tools: [{}] })).toBe("tools");
    expect(named.source).toBe("plain");
  });

  test("cannot have its own variables replaced by a request", () => {
    const kwargs = { messages: "x", bos_token: "x", range: 1, namespace: 1, true: false, none: 1 };
    const source = "{{ bos_token }}{{ messages|length }}{{ range(2)|length }}{{ true }}{{ kw }}";
    const text = template(source).render({ ...hi, kwargs: { ...kwargs, kw: "!" } });
    expect(text).toBe("<|begin_of_text|>12True!");
  });

  test("strips characters, and takes what is empty for false, as in Python", () => {
    const source = "{{ 'xyaxb'.lstrip('yx') }} {{ '\\n a\\n'.strip('\\n') }}|{{ ' a '.rstrip() }}|";
    expect(template(source).render(hi)).toBe("axb  a| a|");
    const empty = "{{ 1 if not [] and not {} and not '' and not none and not 0 and not not [0] }}";
    expect(template(empty).render(hi)).toBe("1");
  });

  test("finds no first and no last item where there is none, as rerankers' templates expect", () => {
    const content = (role: string, pick: string) =>
      `messages | selectattr('role', 'eq', '${role}') | map(attribute='content') | ${pick}`;
    const source = `{{ ${content("system", "first | default('none', true)")} }} {{ ${content("user", "last")} }}|{{ ${content("x", "last")} }}|`;
    expect(template(source).render(hi)).toBe("none hi||");
  });

  test("tells the date as Python does", () => {
    const now = () => new Date(2025, 0, 5, 15, 4, 9);
    const source = "{{ strftime_now('%d %b %Y, %A %B %-d, %I:%M:%S %p %H %y %m %a %%') }}";
    expect(chatTemplate({ jinja: source }, { now })!.render(hi)).toBe(
      "05 Jan 2025, Sunday January 5, 03:04:09 PM 15 25 01 Sun %",
    );
    expect(strftime(now(), "%Q")).toBe("%Q");
  });

  test("says in its own words what it refuses", () => {
    const render = () => template("{{ raise_exception('no ' + messages[0].role) }}").render(hi);
    expect(render).toThrow(new TemplateError("raised", "no user"));
  });

  test("that cannot be continued says so", () => {
    const continued = { continueFinalMessage: true };
    const open = template("{{ messages[-1].content }}.");
    expect(open.render({ ...hi, ...continued })).toBe("hi");
    const parts = [
      { type: "text", text: "a" },
      { type: "text", text: "b " },
    ];
    const list = template("{% for p in messages[0].content %}{{ p.text }}{% endfor %}.");
    expect(list.render({ messages: [{ role: "user", content: parts }], ...continued })).toBe("ab ");
    expect(faultOf(() => template("x").render({ ...hi, ...continued }))).toBe("failed");
    const none = { messages: [{ role: "user", content: null }] };
    expect(faultOf(() => open.render({ ...none, ...continued }))).toBe("failed");
  });

  test("that is not valid is refused when it is read", () => {
    for (const source of [
      "{% if %}",
      "{{ 'open",
      "{% for x in y %}",
      `{{ ${"(".repeat(60_000)}1`,
    ]) {
      expect(faultOf(() => template(source))).toBe("syntax");
    }
  });
});

describe("a hostile template", () => {
  const long = "x".repeat(1 << 18);
  const chat = {
    messages: [
      { role: "user", content: long },
      { role: "user", content: `y${long}` },
    ],
  };
  const repeat = (what: string) => `{% for i in range(60) %}{% set n.s = ${what} %}{% endfor %}`;
  const start = (value: string) => `{% set n = namespace(s=${value}) %}`;
  const shared = `${start("[1, 1]")}${repeat("[n.s, n.s]")}`;
  const often = (what: string) => `{% for i in range(20000) %}${what}{% endfor %}`;
  const limited: Record<string, string> = {
    "counts to a billion": "{% for i in range(10**9) %}x{% endfor %}",
    "counts down": "{{ range(0, -(10**9), -1) | length }}",
    "nests loops": often(often(often(""))),
    "nests loops over its messages": often("{% for m in messages %}{{ m.role }}{% endfor %}"),
    "skips forever": often(often("{% continue %}")),
    "doubles a string by +": `${start("'ab'") + repeat("n.s + n.s")}{{ n.s }}`,
    "doubles a string by ~": `${start("'ab'") + repeat("n.s ~ n.s")}{{ n.s }}`,
    "doubles a string by a method": `${start("'aa'") + repeat("n.s.replace('a', n.s)")}{{ n.s }}`,
    "doubles a string by a filter": `${start("'aa'") + repeat("n.s | replace('a', n.s)")}{{ n.s }}`,
    "doubles a string by join": `${start("'aa'") + repeat("[n.s, n.s, n.s] | join(n.s)")}{{ n.s }}`,
    "replaces each character by many":
      "{{ messages[0].content[:2000].replace('x', messages[0].content) | length }}",
    "replaces each by a filter":
      "{{ messages[0].content[:2000] | replace('x', messages[0].content) | length }}",
    "doubles a list": `${start("[1]") + repeat("n.s + n.s")}{{ n.s }}`,
    "writes shared lists as JSON": `${shared}{{ n.s | tojson }}`,
    "writes shared lists out": `${shared}{{ n.s }}`,
    "writes them in a condition": `${shared}{% if true %}{{ n.s }}{% endif %}`,
    "writes them in a loop": `${shared}{% for i in [1] %}{{ n.s }}{% endfor %}`,
    "writes them in a macro": `${shared}{% macro f(x) %}{{ x }}{% endmacro %}{{ f(n.s) }}`,
    "writes them into a variable": `${shared}{% set x %}{{ n.s }}{% endset %}`,
    "joins shared lists": `${shared}{{ n.s | join(',') }}`,
    "concatenates shared lists": `${shared}{{ '' ~ n.s }}`,
    "writes a cycle": `${start("1")}{% set n.s = [n, n] %}{{ n }}`,
    "indents far": "{{ 'a\nb' | indent(10**9) }}",
    "indents much": "{{ messages[0].content | indent(100000, true) }}",
    "indents JSON far": "{{ [1, [2]] | tojson(indent=10**9) }}",
    "separates JSON far":
      "{{ range(20000) | tojson(separators=(messages[0].content, messages[0].content)) }}",
    "calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "calls itself twice":
      "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "defines long macros over and over": often(
      `{% macro f(n) %}${"{{ n }}".repeat(10_000)}{% endmacro %}`,
    ),
    "sorts long strings": `${start("[]") + often("{% set n.s = n.s + [messages[0].content] %}")}{{ n.s | sort }}`,
    "looks for what is not there": often(often("{{ nothing }}")),
    "turns a long string to capitals again and again": often("{{ messages[0].content | upper }}"),
    "searches a long string again and again": often("{{ 'zz' in messages[0].content }}"),
    "compares long strings again and again": often(
      "{{ messages[0].content == messages[1].content }}",
    ),
    "splits a long string again and again": often("{{ messages[0].content.split('x') | length }}"),
    "slices a long string again and again": often("{{ messages[0].content[::-1] | length }}"),
    "takes shared lists as text": `${shared}{{ n.s | trim }}`,
    "formats a long string again and again": `{{ '${"{0}".repeat(20_000)}'.format(messages[0].content) }}`,
    "formats shared lists": `${shared}{{ '%s' | format(n.s) }}`,
    "counts in a long string again and again": often("{{ messages[0].content.count('x') }}"),
    "loops over a long string again and again": often(
      "{% for c in messages[0].content %}{% endfor %}",
    ),
    "is long": "x".repeat(1 << 18),
    "is mostly blank": " ".repeat(100_000),
    "nests deep": "{% if true %}".repeat(2_000) + "{% endif %}".repeat(2_000),
  };

  for (const [name, source] of Object.entries(limited)) {
    test(`that ${name} is refused, soon`, () => {
      const taken = millisecondsOf(() => {
        expect(faultOf(() => template(source).render(chat))).toBe("limit");
      });
      // Some 150 ms here; the bound is for slow machines. Without the limit each runs for minutes.
      expect(taken).toBeLessThan(1_500);
    });
  }

  test("that gives shared lists for a separator or a message fails soon", () => {
    for (const use of ["[1] | join(n.s)", "raise_exception(n.s)", "strftime_now(n.s)"]) {
      expect(faultOf(() => template(`${shared}{{ ${use} }}`).render(chat))).toBe("failed");
    }
    const strip = `${shared}{{ 'x'.strip(n.s) }}`;
    expect(faultOf(() => template(strip).render(chat))).toBe("none");
  });

  test("that reaches for prototypes finds nothing", () => {
    const paths = "'' [] {} messages messages[0] range namespace() 1 loop".split(" ");
    const names = ["constructor", "__proto__", "prototype", "toString", "__class__", "value"];
    for (const path of paths) {
      for (const name of names) {
        const source = `{% for i in [1] %}{{ ${path}.${name} }}{{ ${path}['${name}'] }}{% endfor %}`;
        const text = faultOf(() => expect(template(source).render(chat)).toBe(""));
        expect([text, path, name]).toEqual(["none", path, name]);
      }
    }
    expect(faultOf(() => template("{{ ''.constructor('x')() }}").render(chat))).toBe("failed");
    expect(faultOf(() => template("{{ range }}").render(chat))).toBe("failed");
    expect(faultOf(() => template("{{ '' ~ range }}").render(chat))).toBe("failed");
    expect(
      faultOf(() => template("{% set n = namespace() %}{% set n.__proto__ = 1 %}").render(chat)),
    ).toBe("none");
  });
});

test("an honest template is not refused for long chats", () => {
  const content = "All work and no play makes Jack a dull boy. ".repeat(50);
  const messages = Array.from({ length: 2_000 }, (_, i) => ({
    role: i % 2 ? "assistant" : "user",
    content,
  }));
  for (const name of ["chatml", "llama 3 with tools", "qwen 3 with tools", "mistral", "gemma"]) {
    const text = template(sources[name]!).render({ messages, addGenerationPrompt: true });
    expect(text.length).toBeGreaterThan(2_000 * content.trim().length);
  }
});

describe("values are what Python makes of them", () => {
  for (const { source, text } of expressions.cases) {
    test(source, () => {
      expect(template(source).render({ messages: [], kwargs: expressions.given })).toBe(text);
    });
  }
});
