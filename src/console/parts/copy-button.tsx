// A button that copies text.
import { useState } from "hono/jsx/dom";

/** How long "Copied" is shown. */
const SAID_MS = 1500;

export function CopyButton({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  // Shows no button: browsers allow copying only on https and loopback pages.
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
