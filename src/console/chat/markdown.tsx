// Renders Markdown as DOM nodes. Elements are created from the parser's tokens, so model output never becomes HTML:
// tags are shown as text, images are not loaded, and links lead only to web pages.

import { memo } from "hono/jsx/dom";
import { lexer, type MarkedToken, type Token, type Tokens } from "marked";
import { Wide } from "../parts/data-table.tsx";
import { CodeBlock } from "./code-block.tsx";

type Node = ReturnType<typeof CodeBlock> | string;

export const Markdown = memo(({ text }: { text: string }) => (
  <div class="markdown">{blocks(lexer(text))}</div>
));

const blocks = (tokens: readonly Token[] | undefined): Node[] =>
  (tokens ?? []).flatMap((token) => nodeOf(token as MarkedToken));

function nodeOf(token: MarkedToken): Node | Node[] {
  switch (token.type) {
    case "heading":
      return heading(token);
    case "paragraph":
      return <p>{blocks(token.tokens)}</p>;
    case "code":
      return <CodeBlock text={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens)}</blockquote>;
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "hr":
      return <hr />;
    case "br":
      return <br />;
    case "strong":
      return <strong>{blocks(token.tokens)}</strong>;
    case "em":
      return <em>{blocks(token.tokens)}</em>;
    case "del":
      return <del>{blocks(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "link":
      return link(token.href, token.raw, blocks(token.tokens));
    case "image":
      return link(token.href, token.raw, [token.text || token.href]);
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    case "text":
      return token.tokens ? blocks(token.tokens) : unescaped(token.text);
    case "escape":
      return token.text;
    case "space":
    case "def":
      return "";
    default:
      // HTML is shown as text.
      return token.raw;
  }
}

/** Renders a heading. Levels start at h3, because the page has headings above. */
function heading({ depth, tokens }: Tokens.Heading): Node {
  const content = blocks(tokens);
  if (depth === 1) return <h3>{content}</h3>;
  return depth === 2 ? <h4>{content}</h4> : <h5>{content}</h5>;
}

function list({ ordered, start, items }: Tokens.List): Node {
  const content = items.map(({ tokens }) => <li>{blocks(tokens)}</li>);
  return ordered ? <ol start={Number(start) || 1}>{content}</ol> : <ul>{content}</ul>;
}

function table({ header, rows, align }: Tokens.Table): Node {
  const sideOf = (column: number) => align[column] ?? "left";
  return (
    <Wide label="Table">
      <table>
        <thead>
          <tr>
            {header.map(({ tokens }, i) => (
              <th scope="col" class={sideOf(i)}>
                {blocks(tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>
              {row.map(({ tokens }, i) => (
                <td class={sideOf(i)}>{blocks(tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

/** Renders a link, or its source unless it leads to a web page. */
function link(href: string, raw: string, content: Node[]): Node {
  if (!/^https?:\/\//i.test(href)) return raw;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {content}
    </a>
  );
}

const entities: Readonly<Record<string, string>> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
};

/** Decodes HTML character references, which are part of Markdown. */
function unescaped(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (all, decimal, hex, name) => {
    if (name !== undefined) return entities[name] ?? all;
    const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
  });
}
