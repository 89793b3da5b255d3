// The console's page, script, style and session. They need no key, because they reveal nothing; the page's further
// requests need one.
import type { Context } from "hono";
import { html } from "hono/html";
import { version } from "../../../package.json";
import type { ConsoleSession } from "../../api/owner/console.ts";
import { presentedKey } from "../frame/auth.ts";
import type { HttpEnv } from "../frame/env.ts";
import { healthOf } from "../frame/health.ts";
import type { Keys, Runtime } from "../frame/serving.ts";
import { type ConsoleFiles, consoleFiles } from "./console-files.ts";

/** Content security policy: scripts, styles and requests of this origin; no inline code, framing or innerHTML. */
const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join("; ");

const pageHeaders = {
  "Content-Security-Policy": policy,
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Resource-Policy": "same-origin",
  "Referrer-Policy": "no-referrer",
  Vary: "Accept",
};

const icon =
  "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='3.5' fill='%232f6fdb'/%3E%3Cpath d='M4 11V5m4 6V7m4 4V3' stroke='white' stroke-width='2' stroke-linecap='round'/%3E%3C/svg%3E";

const page = html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>mlx-serve</title>
<link rel="icon" href="${icon}">
<link rel="stylesheet" href="/console.css">
<script type="module" src="/console.js"></script>
</head>
<body><noscript>This page needs JavaScript.</noscript></body>
</html>
`;

/** Handles GET /: returns the console's page to browsers, and a liveness response to API clients. */
export function consolePage() {
  return (c: Context<HttpEnv>): Response | Promise<Response> =>
    c.req.header("accept")?.includes("text/html")
      ? c.html(page, 200, pageHeaders)
      : c.text("mlx-serve is running", 200, { Vary: "Accept" });
}

type Asset = { plain: string; gzip: Uint8Array<ArrayBuffer>; etag: string };

let assets: Promise<Record<keyof ConsoleFiles, Asset>> | undefined;

async function openAssets(): Promise<Record<keyof ConsoleFiles, Asset>> {
  const { script, style } = await consoleFiles();
  return { script: assetOf(script), style: assetOf(style) };
}

function assetOf(plain: string): Asset {
  return { plain, gzip: Bun.gzipSync(plain), etag: `"${Bun.hash(plain).toString(36)}"` };
}

export function consoleAsset(which: keyof ConsoleFiles, mediaType: string) {
  return () =>
    async (c: Context<HttpEnv>): Promise<Response> => {
      assets ??= openAssets();
      const { plain, gzip, etag } = (await assets)[which];
      const headers = {
        "Content-Type": `${mediaType}; charset=utf-8`,
        "Cache-Control": "no-cache",
        "Cross-Origin-Resource-Policy": "same-origin",
        ETag: etag,
        Vary: "Accept-Encoding",
      };
      if (c.req.header("if-none-match") === etag) return c.body(null, 304, headers);
      if (!c.req.header("accept-encoding")?.includes("gzip")) return c.body(plain, 200, headers);
      return c.body(gzip, 200, { ...headers, "Content-Encoding": "gzip" });
    };
}

export function consoleSession(serving: Runtime & Keys) {
  const { ring } = serving;
  return (c: Context<HttpEnv>): Response => {
    const caller: ReturnType<typeof ring.find> = c.get("caller");
    return c.json({
      needs_key: !ring.open,
      sent_key: presentedKey(c) !== undefined,
      health: healthOf(serving),
      caller: caller
        ? { name: caller.name, tier: caller.tier, owner: caller.owner, version }
        : null,
    } satisfies ConsoleSession);
  };
}
