import { beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { loadSettings } from "../../src/config/load.ts";
import { type Settings, settingList } from "../../src/config/settings.ts";
import { UsageError } from "../../src/config/usage-error.ts";
import { otherVariables } from "../../src/config/variables.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

let env: Record<string, string>;
let ownFile: string;
beforeEach(() => {
  const home = mkdtempSync(join(root, "home-"));
  env = { HOME: home };
  ownFile = join(home, ".config", "mlx-serve", "config.toml");
});

function write(path: string, text: string): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

const load = (...args: string[]) => loadSettings(args, env).settings;

function refusal(...args: string[]): string {
  try {
    loadSettings(args, env);
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError);
    const { message } = error as Error;
    expect(message).not.toContain("\n");
    return message;
  }
  throw new Error(`${args.join(" ")} was not refused`);
}

test("nothing given is the defaults", () => {
  const { settings, sources } = loadSettings([], env);
  expect(settings).toEqual({
    model: "default",
    servedModelName: [],
    dtype: "auto",
    maxModels: 2,
    host: "127.0.0.1",
    port: 8080,
    maxBodySize: 16 * 2 ** 20,
    streamBuffer: 2048,
    maxResponseStorage: 64 * 2 ** 20,
    drainTimeout: 30_000,
    apiKey: [],
    insecureNoAuth: false,
    allowedHosts: [],
    allowedOrigins: [],
    batching: true,
    maxBatchSize: 32,
    maxQueue: 1000,
    prefixCaching: true,
    agentMarks: false,
    warmUp: false,
    maxFileSize: 200 * 2 ** 20,
    maxFileStorage: 4 * 2 ** 30,
    maxFiles: 1000,
    maxBatches: 16,
    logLevel: "info",
    logFormat: "auto",
    logPrompts: false,
    ranks: 1,
    parallel: "auto",
    rankPort: 32_322,
  });
  expect(new Set(Object.values(sources))).toEqual(new Set(["default"]));
});

describe("precedence", () => {
  test("a flag goes before a variable, a variable before the file, the file before the default", () => {
    write(ownFile, 'port = 1\nhost = "::1"\nmax_queue = 9');
    env.MLX_SERVE_PORT = "2";
    env.MLX_SERVE_HOST = "localhost";
    const { settings, sources } = loadSettings(["--port", "3"], env);
    expect(settings).toMatchObject({ port: 3, host: "localhost", maxQueue: 9, maxModels: 2 });
    expect(sources).toMatchObject({
      port: "--port",
      host: "MLX_SERVE_HOST",
      maxQueue: `${ownFile}: max_queue`,
      maxModels: "default",
    });
  });

  test("a list is taken whole from the first that has it", () => {
    write(ownFile, 'api_key = ["file"]');
    env.MLX_SERVE_API_KEY = "a,b";
    expect(load().apiKey).toEqual(["a", "b"]);
    expect(load("--api-key", "c", "--api-key", "d").apiKey).toEqual(["c", "d"]);
  });

  test("of a flag given twice the last one counts", () => {
    expect(load("--port", "1", "--port", "2").port).toBe(2);
    expect(load("--no-batching", "--enable-batching").batching).toBe(true);
  });
});

/** Every flag, with what it sets. */
const spellings: readonly (readonly [string, Partial<Settings>])[] = [
  ["--model a/b", { model: "a/b" }],
  ["-m a/b", { model: "a/b" }],
  ["a/b", { model: "a/b" }],
  ["-- a/b", { model: "a/b" }],
  ["--served-model-name x,y", { servedModelName: ["x", "y"] }],
  ["--alias x", { servedModelName: ["x"] }],
  ["--alias claude-*=default", { servedModelName: ["claude-*=default"] }],
  ["-a x -a y", { servedModelName: ["x", "y"] }],
  ["--dtype bfloat16", { dtype: "bfloat16" }],
  ["--dtype half", { dtype: "float16" }],
  ["--dtype float", { dtype: "float32" }],
  ["--keep-unpacked", { keepUnpacked: true }],
  ["--no-keep-unpacked", { keepUnpacked: false }],
  ["--max-model-len 4096", { maxModelLen: 4096 }],
  ["--max-model-len 32k", { maxModelLen: 32_000 }],
  ["--max_model_len 32K", { maxModelLen: 32_768 }],
  ["--ctx-size 4096", { maxModelLen: 4096 }],
  ["-c 0", { maxModelLen: undefined }],
  ["--max-model-len auto", { maxModelLen: "auto" }],
  ["--step-time 80ms", { stepTime: 80 }],
  ["--chat-template /x.jinja", { chatTemplate: "/x.jinja" }],
  ["--chat-template-file /x.jinja", { chatTemplate: "/x.jinja" }],
  ["--max-models 3", { maxModels: 3 }],
  ["--models-max 3", { maxModels: 3 }],
  ["--idle-unload 10m", { idleUnload: 600_000 }],
  ["--sleep-idle-seconds 90", { idleUnload: 90_000 }],
  ["--host ::1", { host: "::1" }],
  ["--host my-mac.local", { host: "my-mac.local" }],
  ["--port 0", { port: 0 }],
  ["--port=9000", { port: 9000 }],
  ["--ollama-port 11434", { ollamaPort: 11434 }],
  ["--max-body-size 512kB", { maxBodySize: 512_000 }],
  ["--stream-buffer 64", { streamBuffer: 64 }],
  ["--max-response-storage 1GiB", { maxResponseStorage: 2 ** 30 }],
  ["--max-response-storage 0", { maxResponseStorage: 0 }],
  ["--request-timeout 1.5h", { requestTimeout: 5_400_000 }],
  ["--drain-timeout 500ms", { drainTimeout: 500 }],
  ["--shutdown-timeout 0", { drainTimeout: 0 }],
  ["--api-key K", { apiKey: ["K"] }],
  ["--api-key -K=1", { apiKey: ["-K=1"] }],
  ["--api-key=--K", { apiKey: ["--K"] }],
  ["--keys-file /keys.json", { keysFile: "/keys.json" }],
  ["--insecure-no-auth", { insecureNoAuth: true }],
  ["--no-insecure-no-auth", { insecureNoAuth: false }],
  ["--allowed-hosts a.example,[::1]:80", { allowedHosts: ["a.example", "[::1]:80"] }],
  ["--allowed-origins https://a.example", { allowedOrigins: ["https://a.example"] }],
  ['--allowed-origins ["https://a.example","*"]', { allowedOrigins: ["https://a.example", "*"] }],
  ["--cors-origins tauri://localhost,*", { allowedOrigins: ["tauri://localhost", "*"] }],
  ["--batching", { batching: true }],
  ["--batching=off", { batching: false }],
  ["--no-batching", { batching: false }],
  ["--no-batching --enable-batching", { batching: true }],
  ["--no-batching --cont-batching", { batching: true }],
  ["-nocb -cb", { batching: true }],
  ["--no-cont-batching", { batching: false }],
  ["-nocb", { batching: false }],
  ["--max-batch-size 8", { maxBatchSize: 8 }],
  ["--max-num-seqs 8", { maxBatchSize: 8 }],
  ["-np 8", { maxBatchSize: 8 }],
  ["--decode-concurrency 8", { maxBatchSize: 8 }],
  ["--warm-up", { warmUp: true }],
  ["--token-budget 64", { tokenBudget: 64 }],
  ["--max-num-batched-tokens 2K", { tokenBudget: 2048 }],
  ["--batch-size 64", { tokenBudget: 64 }],
  ["-b 64", { tokenBudget: 64 }],
  ["--max-queue 5", { maxQueue: 5 }],
  ["--data-dir /x", { dataDir: "/x" }],
  ["--max-file-size 1MiB", { maxFileSize: 2 ** 20 }],
  ["--max-file-storage 1GiB", { maxFileStorage: 2 ** 30 }],
  ["--max-files 5", { maxFiles: 5 }],
  ["--max-batches 5", { maxBatches: 5 }],
  ["--prefix-caching", { prefixCaching: true }],
  ["--no-prefix-caching", { prefixCaching: false }],
  ["--no-prefix-caching --enable-prefix-caching", { prefixCaching: true }],
  ["--no-prefix-caching --cache-prompt", { prefixCaching: true }],
  ["--no-enable-prefix-caching", { prefixCaching: false }],
  ["--no-cache-prompt", { prefixCaching: false }],
  ["--agent-marks", { agentMarks: true }],
  ["--no-agent-marks", { agentMarks: false }],
  ["--kv-memory 4GiB", { kvMemory: 4 * 2 ** 30 }],
  ["--kv-memory 1.5gb", { kvMemory: 1_500_000_000 }],
  ["--kv-cache-memory-bytes 2097152", { kvMemory: 2 ** 21 }],
  ["--block-pool-size 100", { blockPoolSize: 100 }],
  ["--snapshot-memory 1GiB", { snapshotMemory: 2 ** 30 }],
  ["--temperature 0.7", { temperature: 0.7 }],
  ["--temp 0", { temperature: 0 }],
  ["--top-p .9", { topP: 0.9 }],
  ["--top-k 40", { topK: 40 }],
  ["--min-p 0.05", { minP: 0.05 }],
  ["--max-tokens 100", { maxTokens: 100 }],
  ["--predict 100", { maxTokens: 100 }],
  ["--n-predict 100", { maxTokens: 100 }],
  ["-n 100", { maxTokens: 100 }],
  ["--log-level DEBUG", { logLevel: "debug" }],
  ["--log-level WARNING", { logLevel: "warn" }],
  ["--verbose", { logLevel: "debug" }],
  ["--log-format json", { logFormat: "json" }],
  ["--log-prompts", { logPrompts: true }],
  ["--no-log-prompts", { logPrompts: false }],
  ["--backend cuda", { backend: "cuda" }],
  ["--threads 4", { threads: 4 }],
  ["-t 4", { threads: 4 }],
  ["--ranks 2", { ranks: 2 }],
  ["--hosts /hosts.json", { hosts: "/hosts.json" }],
  ["--parallel pipeline", { parallel: "pipeline" }],
  ["--layers 0-19,20-39", { layers: [0, 20].map((first) => ({ first, end: first + 20 })) }],
  ["--rank-port 4000", { rankPort: 4000 }],
  ["--rank-secret 0123456789abcdef", { rankSecret: "0123456789abcdef" }],
];

const othersOf = ({ aliases = [], sets = {} }: Partial<(typeof settingList)[number]>) => [
  ...aliases,
  ...Object.keys(sets),
];

describe("flags", () => {
  test.each(spellings)("%s", (line, expected) => {
    expect(load(...line.split(" "))).toMatchObject(expected);
  });

  test("the list above has every flag", () => {
    const words = new Set(
      spellings.flatMap(([line]) => line.split(/[ =]/)).map((word) => word.replaceAll("_", "-")),
    );
    const flags = settingList.flatMap(({ flag, ...more }) => [flag, ...othersOf(more)]);
    expect(flags.filter((flag) => !words.has(flag))).toEqual(["--config"]);
  });

  test("no spelling means two settings", () => {
    const flags = settingList.flatMap(({ flag, ...more }) => {
      return [flag, flag.replace("--", "--no-"), ...othersOf(more)];
    });
    expect(flags.length).toBe(new Set(flags).size);
  });

  test("an unknown one is refused with the nearest there is", () => {
    expect(refusal("--max-bach-size", "8")).toBe(
      "--max-bach-size: unknown setting; did you mean --max-batch-size?",
    );
    expect(refusal("--ctx_sise=1")).toContain("did you mean --ctx-size?");
    expect(refusal("--frobnicate")).toBe("--frobnicate: unknown setting");
    expect(refusal("-x")).toBe("-x: unknown setting");
  });

  // A file of one bare key a line; a chunk of each prompt and not of the step; a limit of the socket.
  test.each(["--api-key-file", "--prefill-step-size", "--timeout", "--gpu-memory-utilization"])(
    "%s means something else, and is refused",
    (flag) => void expect(refusal(flag, "1")).toContain("unknown setting"),
  );

  test("a missing value, and one too many, are refused", () => {
    expect(refusal("--port")).toBe("--port: <n> is missing");
    expect(refusal("--host", "--port", "1")).toBe("--host: <address> is missing");
    expect(refusal("--model", "-m", "x")).toBe("--model: <model> is missing");
    expect(refusal("--no-batching=true")).toBe("--no-batching: takes no value");
    expect(refusal("--verbose=1")).toBe("--verbose: takes no value");
  });

  test("two models are refused", () => {
    for (const args of [
      ["a", "b"],
      ["a", "--model", "b"],
      ["--", "a", "b"],
    ]) {
      expect(refusal(...args)).toContain("more than one model");
    }
  });
});

describe("values", () => {
  const wrong: Partial<Record<keyof Settings, string[]>> = {
    model: ["", " "],
    servedModelName: ["", "a,,b", "a b", "x".repeat(257), "=a", "a=", "a=b=c"],
    dtype: ["", "int8", "constructor"],
    maxModelLen: ["-1", "1.5", "automatic", "16777217"],
    stepTime: ["0", "2m", "fast"],
    chatTemplate: ["", "{{ messages }}", "{% for m in messages %}"],
    maxModels: ["0", "65", "two"],
    idleUnload: ["0", "-1", "25d", "10 minutes", ""],
    host: ["", "http://localhost", "127.0.0.1:80", "a b", "a..b"],
    port: ["-1", "65536", "80.5", "0x50", "1e3", "http", ""],
    ollamaPort: ["-1", "65536", "yes"],
    maxBodySize: ["0", "2GiB", "16M", "4 GiB B", "-1"],
    streamBuffer: ["0"],
    requestTimeout: ["0", "2d"],
    drainTimeout: ["-1s", "2h"],
    allowedHosts: ["https://a", "a b", ""],
    allowedOrigins: ["a.example", "https://a/", "localhost", '["https://a"', "[1]"],
    batching: ["maybe", ""],
    maxBatchSize: ["0", "1025", "-1"],
    tokenBudget: ["0", "31", "1G"],
    maxQueue: ["0", "1e9"],
    kvMemory: ["lots", "1kB", "4G", "17TiB"],
    snapshotMemory: ["some", "1kB", "17TiB"],
    blockPoolSize: ["0", "1.5"],
    temperature: ["-0.1", "2.1", "NaN", "Infinity", ""],
    topP: ["0", "1.1"],
    topK: ["-1", "0.5"],
    minP: ["-0.1", "1.1"],
    maxTokens: ["0", "-1"],
    logLevel: ["loud", "CRITICAL"],
    logFormat: ["xml"],
    backend: ["vulkan", ""],
    threads: ["0", "-1"],
    ranks: ["0", "65"],
    parallel: ["8", "data"],
    layers: ["", "20", "0-", "0-9,", "a-b"],
  };

  test.each(Object.entries(wrong))(
    "wrong ones of %s are refused by name, wherever",
    (key, list) => {
      const { flag, variable, name } = settingList.find((each) => each.key === key)!;
      for (const value of list) {
        expect(refusal(`${flag}=${value}`)).toStartWith(`${flag}: expected `);
        const shown = ` not ${JSON.stringify(value).slice(0, 100)}`;
        env[variable] = value;
        expect(refusal()).toStartWith(`${variable}: expected `);
        expect(refusal()).toContain(shown);
        delete env[variable];
        write(ownFile, `${name} = ${JSON.stringify(value)}`);
        expect(refusal()).toStartWith(`${ownFile}: ${name}: expected `);
        rmSync(ownFile);
      }
    },
  );

  test("a refusal says what was wanted", () => {
    expect(refusal("--port", "http")).toBe(
      '--port: expected a whole number from 0 to 65535, not "http"',
    );
    expect(refusal("--kv-memory", "4G")).toBe(
      '--kv-memory: expected a size from 1MiB to 16TiB, such as 512MB or 4GiB, not "4G"',
    );
    expect(refusal("--allowed-origins", "*", "--allowed-origins", "a")).toBe(
      '--allowed-origins: expected origins such as https://app.example, or *, not "*,a"',
    );
  });

  test("paths are absolute, and ~ is the user's folder", () => {
    expect(load("--keys-file", "k.json").keysFile).toBe(join(process.cwd(), "k.json"));
    env.MLX_SERVE_CHAT_TEMPLATE = "~/x.jinja";
    expect(load().chatTemplate).toBe(join(env.HOME!, "x.jinja"));
  });
});

describe("variables", () => {
  test("every setting has one", () => {
    env = {
      ...env,
      MLX_SERVE_MODEL: "a/b",
      MLX_SERVE_SERVED_MODEL_NAME: "x, y",
      MLX_SERVE_MAX_BATCH_SIZE: "8",
      MLX_SERVE_BATCHING: "off",
      MLX_SERVE_LOG_PROMPTS: "1",
      MLX_SERVE_TOP_P: "0.5",
      MLX_SERVE_KV_MEMORY: "1GiB",
      MLX_SERVE_IDLE_UNLOAD: "60",
      MLX_SERVE_BACKEND: "cpu",
    };
    expect(load()).toMatchObject({
      model: "a/b",
      servedModelName: ["x", "y"],
      maxBatchSize: 8,
      batching: false,
      logPrompts: true,
      topP: 0.5,
      kvMemory: 2 ** 30,
      idleUnload: 60_000,
      backend: "cpu",
    });
  });

  test("MLX_SERVE_LOG is another spelling of MLX_SERVE_LOG_LEVEL, which goes before it", () => {
    env.MLX_SERVE_LOG = "debug";
    expect(load().logLevel).toBe("debug");
    env.MLX_SERVE_LOG_LEVEL = "error";
    expect(load().logLevel).toBe("error");
  });

  test("unknown ones are refused, those of other parts are not", () => {
    for (const name of Object.keys(otherVariables)) env[name] = "x";
    expect(load().port).toBe(8080);
    expect(refusalWith("MLX_SERVE_PROT")).toBe(
      "MLX_SERVE_PROT: unknown setting; did you mean MLX_SERVE_PORT?",
    );
    expect(refusalWith("MLX_SERVE_MAX_NUM_SEQS")).toEndWith(
      "did you mean MLX_SERVE_MAX_BATCH_SIZE?",
    );
    expect(refusalWith("MLX_SERVE_CACH")).toEndWith("did you mean MLX_SERVE_CACHE?");
    expect(refusalWith("MLX_SERVE_FROBNICATE")).toEndWith("unknown setting");
  });

  function refusalWith(name: string): string {
    env[name] = "1";
    const message = refusal();
    delete env[name];
    return message;
  }
});

describe("the file", () => {
  test("takes dashes and underscores, and the types of TOML", () => {
    write(
      ownFile,
      `max-batch-size = 8
       token_budget = "2K"
       top_p = 0.5
       batching = false
       api_key = ["a", "b"]
       allowed_origins = "https://a.example"
       drain_timeout = 5`,
    );
    expect(load()).toMatchObject({
      maxBatchSize: 8,
      tokenBudget: 2048,
      topP: 0.5,
      batching: false,
      apiKey: ["a", "b"],
      allowedOrigins: ["https://a.example"],
      drainTimeout: 5000,
      config: ownFile,
    });
  });

  test("is the one that --config names, then MLX_SERVE_CONFIG, then the user's own", () => {
    const [first, second, third] = ["1", "2", "3"].map((port) =>
      write(join(env.HOME!, `${port}.toml`), `port = ${port}`),
    );
    write(ownFile, "port = 4");
    expect(load().port).toBe(4);
    env.XDG_CONFIG_HOME = join(env.HOME!, "xdg");
    expect(load()).toMatchObject({ port: 8080 });
    write(join(env.XDG_CONFIG_HOME, "mlx-serve", "config.toml"), "port = 5");
    expect(load().port).toBe(5);
    env.MLX_SERVE_CONFIG = second!;
    expect(load()).toMatchObject({ port: 2, config: second! });
    expect(load("--config", first!)).toMatchObject({ port: 1, config: first! });
    expect(load(`--config=${third}`).port).toBe(3);
  });

  test("that is named must be there", () => {
    expect(refusal("--config", "/absent.toml")).toBe("--config: /absent.toml does not exist");
    env.MLX_SERVE_CONFIG = "~/absent.toml";
    expect(refusal()).toBe(`MLX_SERVE_CONFIG: ${env.HOME}/absent.toml does not exist`);
    expect(refusal("--config", env.HOME!)).toBe(`${env.HOME}: cannot be read (EISDIR)`);
  });

  test("has its paths beside it", () => {
    const file = write(join(env.HOME!, "here", "c.toml"), 'keys_file = "k"\nmodel = "./m"');
    expect(load("--config", file)).toMatchObject({
      keysFile: join(env.HOME!, "here", "k"),
      model: join(env.HOME!, "here", "m"),
    });
    write(file, 'keys_file = "~/k"\nmodel = "org/m"');
    expect(load("--config", file)).toMatchObject({
      keysFile: join(env.HOME!, "k"),
      model: "org/m",
    });
  });

  test("with an unknown key is refused", () => {
    write(ownFile, "max_bach_size = 8");
    expect(refusal()).toBe(
      `${ownFile}: max_bach_size: unknown setting; did you mean max_batch_size?`,
    );
    write(ownFile, "max-num-seqs = 8");
    expect(refusal()).toEndWith("did you mean max_batch_size?");
    write(ownFile, "[server]\nport = 1");
    expect(refusal()).toStartWith(`${ownFile}: server: unknown setting`);
    write(ownFile, '__proto__ = "x"');
    expect(refusal()).toStartWith(`${ownFile}: __proto__: unknown setting`);
    write(ownFile, 'config = "x"');
    expect(refusal()).toBe(`${ownFile}: config: cannot be set in a file`);
  });

  test("with a value of the wrong type is refused", () => {
    for (const line of [
      "port = [1]",
      "port = true",
      "[port]",
      "port = nan",
      "batching = 2",
      'batching = ["on"]',
      'dtype = ["auto"]',
      "max_model_len = [4096]",
    ]) {
      write(ownFile, line);
      expect(refusal()).toStartWith(`${ownFile}: `);
    }
    write(ownFile, "[port]\nx = 1");
    expect(refusal()).toEndWith("not a table");
  });

  test("that is not TOML is refused with its line", () => {
    write(ownFile, 'port = 1\nallowed_hosts = [\n  "a"\n]\nhost = localhost\nmax_queue = 3');
    expect(refusal()).toBe(`${ownFile}: line 5 is not TOML`);
    write(ownFile, 'port = 1\nhost = "');
    expect(refusal()).toBe(`${ownFile}: line 2 is not TOML`);
    write(ownFile, "what");
    expect(refusal()).toBe(`${ownFile}: line 1 is not TOML`);
  });
});

describe("a key stands in no refusal", () => {
  const secret = "sk-very-secret";

  test("of a flag", () => {
    for (const args of [
      ["--api-key", `${secret} x`],
      [`--api-key=${secret}\u00e9`],
      ["--api-key", `${secret},`],
      [`--api-kee=${secret}`],
      [`--api-key ${secret}`],
      [`--api-key:${secret}`],
      ["--model", "m", "--api-key", "k", secret],
      ["--api-key", "--port", secret],
    ]) {
      expect(refusal(...args)).not.toContain(secret);
    }
  });

  test("of a variable", () => {
    env.MLX_SERVE_API_KEY = `${secret} x`;
    expect(refusal()).toBe("MLX_SERVE_API_KEY: expected keys of printable characters");
    env = { HOME: env.HOME!, MLX_SERVE_API_KEYS: secret };
    expect(refusal()).not.toContain(secret);
  });

  test("of the file", () => {
    for (const line of [
      `api_key = ${secret}`,
      `api_key = "${secret}`,
      `api_key = ["${secret}", 1]`,
      `api_key = { a = "${secret}" }`,
      `api_keys = "${secret}"`,
      `[host]\napi_key = "${secret}"`,
      `host = ["${secret}"]\nhost = 1`,
    ]) {
      write(ownFile, line);
      expect(refusal()).not.toContain(secret);
    }
  });
});
