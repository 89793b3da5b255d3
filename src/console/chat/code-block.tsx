// A code block with a copy button, and syntax colours for JSON.
import { CopyButton } from "../parts/copy-button.tsx";

export function CodeBlock({ text, language }: { text: string; language: string }) {
  return (
    <figure class="code">
      <figcaption>
        <span>{language}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre>
        <code>{language === "json" ? jsonParts(text) : text}</code>
      </pre>
    </figure>
  );
}

/** Shows text indented if it is complete JSON, otherwise unchanged. */
export function JsonBlock({ text }: { text: string }) {
  return <CodeBlock text={indented(text)} language="json" />;
}

function indented(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const part = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function jsonParts(text: string) {
  const parts: (string | ReturnType<typeof CopyButton>)[] = [];
  let at = 0;
  for (const match of text.matchAll(part)) {
    const [whole, quoted, colon] = match;
    parts.push(text.slice(at, match.index));
    at = match.index + whole.length;
    if (quoted === undefined) parts.push(<span class="literal">{whole}</span>);
    else if (colon === undefined) parts.push(<span class="string">{quoted}</span>);
    else parts.push(<span class="name">{quoted}</span>, colon);
  }
  return [...parts, text.slice(at)];
}
