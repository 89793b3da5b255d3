// A shell that runs the commands of one document as a reader would: in the checkout, with a home, settings and
// caches of its own, and a hub on loopback in place of Hugging Face's.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import packageJson from "../../package.json" with { type: "json" };
import { knownServers } from "../../src/serve/server-file.ts";
import { LoopbackHub } from "../hub/loopback-hub.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { root } from "./documents.ts";

/** The repo that documents pull. */
const REPO = "HuggingFaceTB/SmolLM2-135M-Instruct";

/** The ports that documents name: the server's own, and Ollama's. */
const PORTS = ["8080", "11434"] as const;

type Environment = Record<string, string | undefined>;

export type DocumentShellOptions = { isTiny: boolean; hasNpm: boolean };

/** A function of the shell that runs `npm start -- …` and `npm run -s <script> -- …` as npm does. */
function npmStandIn(): string {
  const cases = Object.entries(packageJson.scripts).map(
    ([name, command]) => `${name}) ${command} "$@";;`,
  );
  return `npm() {
  case "$1 $2" in "run -s") shift 2;; start*) ;; *) echo "npm $*: unknown here"; return 1;; esac
  local script=$1; shift
  [ "$1" = -- ] && shift
  case "$script" in ${cases.join(" ")} *) echo "there is no script $script"; return 1;; esac
}`;
}

export class DocumentShell {
  readonly #home: string;
  /** The free ones in their place. */
  readonly #ports: readonly [string, string];
  readonly #hub: LoopbackHub;
  readonly #env: Environment;
  readonly #bash;
  readonly #printed: AsyncIterator<Uint8Array>;
  #hasServer = false;

  /**
   * `isTiny`: the default model is a tiny one with random weights, so that servers start and answer fast.
   * `hasNpm`: npm itself runs the scripts. It takes longer than most of them.
   */
  static async start({ isTiny, hasNpm }: DocumentShellOptions): Promise<DocumentShell> {
    const home = mkdtempSync(join(tmpdir(), "mlx-serve-docs-"));
    const model = join(home, "tiny");
    writeChatModel(model);
    const files = readdirSync(model).map((name) => {
      return [name, { content: readFileSync(join(model, name)) }] as const;
    });
    const hub = await LoopbackHub.start();
    hub.add(REPO, { files: Object.fromEntries(files) });
    const settings = isTiny ? { MLX_SERVE_MODEL: model, MLX_SERVE_MAX_TOKENS: "16" } : {};
    const shell = new DocumentShell(home, [await freePort(), await freePort()], hub, settings);
    if (!hasNpm) shell.#type(npmStandIn());
    return shell;
  }

  private constructor(
    home: string,
    ports: readonly [string, string],
    hub: LoopbackHub,
    settings: Environment,
  ) {
    this.#home = home;
    this.#ports = ports;
    this.#hub = hub;
    const cache = join(home, "cache");
    mkdirSync(cache);
    for (const name of ["native", "models"]) {
      symlinkSync(join(cacheDirectory(), name), join(cache, name));
    }
    // Variables that describe the machine are kept, those with the user's preferences are not.
    const preference = /^(HF|XDG)_|^MLX_SERVE_(?!BACKEND|DOWNLOADS|MLXC|THREADS)/;
    const own = Object.entries(process.env).filter(([name]) => !preference.test(name));
    this.#env = {
      ...Object.fromEntries(own),
      HOME: home,
      MLX_SERVE_CACHE: cache,
      MLX_SERVE_PORT: ports[0],
      HF_ENDPOINT: hub.url,
      ...settings,
    };
    this.#bash = Bun.spawn(["bash"], {
      cwd: root,
      env: this.#env,
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#printed = this.#bash.stdout[Symbol.asyncIterator]();
    // A request that the server rejects fails its command.
    this.#type('set -o pipefail; curl() { command curl --fail-with-body -sS -m 60 "$@"; }');
  }

  /** Returns what the command prints; throws if it fails. A server keeps running in the background. */
  async run(command: string): Promise<string> {
    if (/^(\w+=\S+ )*npm start\b/.test(command)) return await this.#serve(command);
    return await this.#ask(`{ ${this.#here(command)}\n} < /dev/null 2>&1`);
  }

  /** The same for a program in another language. */
  async interpret(interpreter: readonly string[], program: string): Promise<string> {
    const { stdout, stderr, exited } = Bun.spawn([...interpreter], {
      cwd: root,
      env: this.#env,
      stdin: new Blob([this.#here(program)]),
      stdout: "pipe",
      stderr: "pipe",
    });
    const [printed, faults] = await Promise.all([stdout.text(), stderr.text()]);
    if ((await exited) !== 0) throw new Error(faults);
    return printed;
  }

  async stop(): Promise<void> {
    await this.#stopServer();
    await this.#bash.stdin.end();
    await this.#bash.exited;
    await this.#hub.stop();
    rmSync(this.#home, { recursive: true });
  }

  async #serve(command: string): Promise<string> {
    await this.#stopServer();
    const log = join(this.#home, "server.log");
    await this.#ask(`{ ${this.#here(command)}\n} < /dev/null > ${log} 2>&1 & server=$!`);
    this.#hasServer = true;
    while (!(await this.#isReady())) {
      await this.#ask(`kill -0 $server || { cat ${log}; false; }`);
      await Bun.sleep(50);
    }
    return "";
  }

  async #isReady(): Promise<boolean> {
    const answer = await fetch(`http://127.0.0.1:${this.#ports[0]}/health`).catch(() => undefined);
    return answer?.ok ?? false;
  }

  /** As a supervisor would; it must exit with 0. */
  async #stopServer(): Promise<void> {
    if (!this.#hasServer) return;
    this.#hasServer = false;
    for (const { pid } of knownServers(this.#env)) process.kill(pid, "SIGTERM");
    await this.#ask("wait $server");
  }

  /** The text with the ports of this shell's server. */
  #here(text: string): string {
    return PORTS.reduce((here, port, i) => here.replaceAll(port, this.#ports[i]!), text);
  }

  #type(line: string): void {
    this.#bash.stdin.write(`${line}\n`);
    void this.#bash.stdin.flush();
  }

  async #ask(command: string): Promise<string> {
    const mark = crypto.randomUUID();
    this.#type(`${command}\necho ${mark} $?`);
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const [, printed, code] = new RegExp(`^(.*)${mark} (\\d+)\\n$`, "s").exec(text) ?? [];
      if (code === "0") return printed!;
      if (code !== undefined) throw new Error(`${command} ended with ${code}:\n${printed}`);
      const { value, done } = await this.#printed.next();
      if (done) throw new Error(`${command} ended the shell:\n${text}`);
      text += decoder.decode(value, { stream: true });
    }
  }
}

async function freePort(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (typeof address !== "object" || !address) throw new Error("no port is free");
  return String(address.port);
}
