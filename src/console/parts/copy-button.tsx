// A button that copies a text.
import { useState } from "hono/jsx/dom";

/** How long it says that it has copied. */
const SAID_MS = 1500;

export function CopyButton({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  // Browsers let only pages of https and of the loopback copy.
  if (!isSecureContext) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(setCopied, SAID_MS, false);
  };
  return (
    <button type="button" class="quiet" onClick={() => void copy()}>
      {isCopied ? "Copied" : "Copy"}
    </button>
  );
}
