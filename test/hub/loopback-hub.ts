// A small hub on loopback: the routes that a pull asks, and a second server in the place of the CDN
// that the hub sends big files from. It counts what it serves, and can be told to fail.
import { expect } from "bun:test";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { HubError } from "../../src/hub/hub-error.ts";

export type HubFile = {
  readonly content: Uint8Array;
  /** Big files come from the CDN and are listed with their SHA-256; small ones with git's SHA-1. */
  readonly big?: boolean;
  /** What the listing says, where it is not what is sent. */
  readonly listed?: { readonly oid?: string; readonly bytes?: number };
};

export type HubRepo = {
  readonly files: Readonly<Record<string, HubFile>>;
  readonly revisions?: readonly string[];
  /** The token without which nothing is answered. */
  readonly token?: string;
  readonly isGated?: boolean;
};

export type Served = {
  readonly server: "hub" | "cdn";
  readonly path: string;
  readonly authorization: string | undefined;
  readonly range: string | undefined;
  bytes: number;
};

/** What happens instead of the whole answer: some bytes, and then this. */
export type Fault =
  | { readonly kind: "cut"; readonly afterBytes: number; readonly when: () => boolean }
  | { readonly kind: "hold"; readonly afterBytes: number; readonly until: Promise<void> }
  | { readonly kind: "trickle"; readonly pieces: number; readonly everyMs: number }
  | { readonly kind: "whole" } // a server that does not know Range
  | { readonly kind: "status"; readonly status: number };

export class LoopbackHub {
  readonly repos = new Map<string, HubRepo>();
  readonly served: Served[] = [];
  /** For the next requests of a file, one each. */
  readonly faults = new Map<string, Fault[]>();
  readonly #servers = {
    hub: createServer((request, response) => this.#hub(request, response)),
    cdn: createServer((request, response) => this.#cdn(request, response)),
  };

  static async start(): Promise<LoopbackHub> {
    const hub = new LoopbackHub();
    for (const server of Object.values(hub.#servers)) {
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    }
    return hub;
  }

  async stop(): Promise<void> {
    for (const server of Object.values(this.#servers)) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }

  get url(): string {
    return this.#urlOf("hub");
  }

  /** Adds a repo, and says which commit it is at. */
  add(id: string, repo: HubRepo): string {
    this.repos.set(id, repo);
    return commitOf(repo);
  }

  /** Bytes of a file that were sent, by whichever server. */
  bytesOf(path: string): number {
    return this.requestsOf(path).reduce((sum, { bytes }) => sum + bytes, 0);
  }

  requestsOf(path: string): Served[] {
    return this.served.filter((one) => one.path === path && one.bytes > 0);
  }

  get bytes(): number {
    return this.served.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  #urlOf(server: "hub" | "cdn"): string {
    return `http://127.0.0.1:${(this.#servers[server].address() as AddressInfo).port}`;
  }

  #note(server: "hub" | "cdn", path: string, request: IncomingMessage): Served {
    const { authorization, range } = request.headers;
    const served = { server, path, authorization, range, bytes: 0 };
    this.served.push(served);
    return served;
  }

  #hub(request: IncomingMessage, response: ServerResponse) {
    const { pathname } = new URL(request.url!, this.url);
    const [, id, verb, revision, path] =
      /^\/api\/models\/(.+?)\/(revision|tree)\/([^/]+)$/.exec(pathname) ??
      /^\/(.+?)\/(resolve)\/([^/]+)\/(.+)$/.exec(pathname) ??
      [];
    const name = decodeURIComponent(path ?? verb ?? pathname);
    const served = this.#note("hub", name, request);
    const repo = this.repos.get(id ?? "");
    const refuse = (status: number, code: string) => {
      response.writeHead(status, { "X-Error-Code": code, "Content-Type": "application/json" });
      response.end(JSON.stringify({ error: code }));
    };
    const fault = path === undefined ? this.faults.get(name)?.shift() : undefined;
    if (fault?.kind === "status") return refuse(fault.status, "");
    // Like huggingface.co, does not reveal a repo to a client without access to it.
    if (!repo) return refuse(request.headers.authorization ? 404 : 401, "RepoNotFound");
    if (repo.token && request.headers.authorization !== `Bearer ${repo.token}`) {
      return refuse(401, request.headers.authorization ? "" : "RepoNotFound");
    }
    const commit = commitOf(repo);
    const revisions = [commit, ...(repo.revisions ?? ["main"])];
    if (!revisions.includes(decodeURIComponent(revision!))) return refuse(404, "RevisionNotFound");
    if (verb === "revision") return json(response, { _id: "1", id, sha: commit });
    if (verb === "tree") return json(response, treeOf(repo));

    if (repo.isGated) return refuse(403, "GatedRepo");
    const file = repo.files[name];
    if (!file) return refuse(404, "EntryNotFound");
    response.setHeader("X-Repo-Commit", commit);
    if (!file.big) return this.#send(request, response, name, file, served);
    response.writeHead(302, {
      Location: `${this.#urlOf("cdn")}/${id}/${path}?signature=1`,
      "X-Linked-Etag": `"${sha256(file.content)}"`,
      "X-Linked-Size": file.content.length,
    });
    response.end();
  }

  #cdn(request: IncomingMessage, response: ServerResponse): void {
    const { pathname } = new URL(request.url!, this.url);
    const path = decodeURIComponent(pathname);
    const [id, repo] = [...this.repos].find(([id]) => path.startsWith(`/${id}/`))!;
    const name = path.slice(id.length + 2);
    const served = this.#note("cdn", name, request);
    this.#send(request, response, name, repo.files[name]!, served);
  }

  #send(
    request: IncomingMessage,
    response: ServerResponse,
    name: string,
    { content, big }: HubFile,
    served: Served,
  ): void {
    const fault = this.faults.get(name)?.shift();
    if (fault?.kind === "status") {
      response.writeHead(fault.status);
      response.end();
      return;
    }
    const ranges = fault?.kind === "whole" ? "" : (request.headers.range ?? "");
    const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(ranges) ?? [];
    const start = Number(from ?? 0);
    const end = Math.min(to ? Number(to) + 1 : content.length, content.length);
    if (start > 0 && start >= content.length) {
      response.writeHead(416);
      response.end();
      return;
    }
    const body = content.subarray(start, end);
    const isPart = body.length < content.length;
    const range = `bytes ${start}-${end - 1}/${content.length}`;
    response.writeHead(isPart ? 206 : 200, {
      ETag: big ? `"${sha256(content)}"` : `"${gitSha1(content)}"`,
      "Content-Length": body.length,
      ...(isPart && { "Content-Range": range }),
    });
    const sent = fault && "afterBytes" in fault ? body.subarray(0, fault.afterBytes) : body;
    served.bytes = sent.length;
    if (fault?.kind === "trickle") void trickle(response, body, fault.pieces, fault.everyMs);
    else if (fault?.kind === "cut") {
      response.write(sent);
      const timer = setInterval(() => {
        if (!fault.when()) return;
        clearInterval(timer);
        response.socket?.end();
      }, 1);
    } else if (fault?.kind === "hold") {
      response.write(sent);
      void fault.until.then(() => {
        served.bytes = body.length;
        response.end(body.subarray(sent.length));
      });
    } else response.end(sent);
  }
}

async function trickle(
  response: ServerResponse,
  body: Uint8Array,
  pieces: number,
  everyMs: number,
): Promise<void> {
  const bytes = Math.ceil(body.length / pieces);
  for (let start = 0; start < body.length; start += bytes) {
    response.write(body.subarray(start, start + bytes));
    await Bun.sleep(everyMs);
  }
  response.end();
}

function json(response: ServerResponse, value: unknown): void {
  response.writeHead(200, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

function treeOf(repo: HubRepo): unknown[] {
  return Object.entries(repo.files).map(([path, { content, big, listed }]) => {
    const size = listed?.bytes ?? content.length;
    if (!big) return { type: "file", path, size, oid: listed?.oid ?? gitSha1(content) };
    const oid = listed?.oid ?? sha256(content);
    const lfs = { oid, size, pointerSize: 134 };
    return { type: "file", path, size, oid: gitSha1(content), lfs, xetHash: sha256(content) };
  });
}

function commitOf(repo: HubRepo): string {
  const text = JSON.stringify(treeOf(repo));
  return new Bun.CryptoHasher("sha1").update(text).digest("hex");
}

export const sha256 = oncePerFile((content) =>
  new Bun.CryptoHasher("sha256").update(content).digest("hex"),
);

export const gitSha1 = oncePerFile((content) => {
  const header = `blob ${content.length}\0`;
  return new Bun.CryptoHasher("sha1").update(header).update(content).digest("hex");
});

/** Every request asks for the hashes of all files, and some have a hundred megabytes. */
function oncePerFile(hash: (content: Uint8Array) => string): (content: Uint8Array) => string {
  const known = new WeakMap<Uint8Array, string>();
  return (content) => known.getOrInsertComputed(content, hash);
}

/** The message of the HubError that the work fails with: one short line. */
export async function failure(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(HubError);
  const { message } = error as HubError;
  expect(message).not.toContain("\n");
  expect(message.length).toBeLessThan(400);
  return message;
}
