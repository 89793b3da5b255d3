// The table of the command line's verbs, with their texts for help and shell completion. Each verb is imported on
// demand for fast start-up.
import type { Setting } from "../config/settings.ts";

/** A verb's flag, described like a setting of `serve`. */
export type Flag = Pick<Setting, "flag" | "aliases" | "metavar" | "text" | "values" | "default">;

export type Verb = {
  name: string;
  /** Synopsis of the verb's arguments; absent if it takes none. */
  usage?: string;
  summary: string;
  flags?: readonly Flag[];
  /** Whether the verb accepts the server settings of src/config as flags. */
  settings?: true;
  /** Values of the verb's arguments, for shell completion. */
  values?: Setting["values"];
  run: (args: string[]) => void | Promise<void>;
};

/** The verb that is run if none is given. */
export const defaultVerb = "serve";

const json: Flag = { flag: "--json", text: "JSON output" };
const jsonProgress: Flag = { flag: "--json", text: "progress as JSON" };
const serverFlags: readonly Flag[] = [
  { flag: "--url", metavar: "<url>", text: "a server other than the local one" },
  { flag: "--api-key", metavar: "<key>", text: "for a server that requires one" },
];
const tiers = ["HIGH", "NORMAL", "LOW"];
const agentNames = ["claude", "codex", "opencode"];
const serviceActions = ["install", "uninstall", "start", "stop", "status", "logs"];
const shells = ["bash", "zsh", "fish"];

export const verbs: readonly Verb[] = [
  {
    name: "serve",
    usage: "[model]",
    summary: "serves a model over the OpenAI, Anthropic and Ollama APIs",
    settings: true,
    values: "model",
    run: async (args) => (await import("./serve.ts")).serve(args),
  },
  {
    name: "run",
    usage: "[model] [prompt]",
    summary: "answers in the terminal; starts a chat if no prompt is given",
    flags: [
      {
        flag: "--max-tokens",
        aliases: ["--predict", "--n-predict", "-n"],
        metavar: "<n>",
        text: "maximum tokens of an answer (1024)",
      },
      { flag: "--temperature", aliases: ["--temp"], metavar: "<x>", text: "0 is greedy (0)" },
      { flag: "--top-p", metavar: "<x>", text: "nucleus sampling (1)" },
      { flag: "--top-k", metavar: "<n>", text: "number of likeliest tokens; 0 is off (0)" },
      { flag: "--min-p", metavar: "<x>", text: "minimum relative probability (0)" },
      { flag: "--seed", metavar: "<n>", text: "for reproducible sampling" },
      { flag: "--system", metavar: "<text>", text: "the system prompt" },
      {
        flag: "--dtype",
        metavar: "<type>",
        text: "dtype of unquantized weights",
        values: ["auto", "float32", "float16", "bfloat16"],
      },
      { flag: "--local", text: "runs in this process, without a server" },
      ...serverFlags,
    ],
    values: "model",
    run: async (args) => (await import("./run.ts")).run(args),
  },
  {
    name: "launch",
    usage: `${agentNames.join("|")} [-- args]`,
    summary: "runs a coding agent on the local server, which is started if none runs",
    flags: [
      { flag: "--print", text: "prints shell commands instead" },
      {
        flag: "--model",
        aliases: ["-m"],
        metavar: "<model>",
        text: "the agent's model (the server's first); also the model of a server that is started",
        values: "model",
      },
      ...serverFlags,
    ],
    values: agentNames,
    run: async (args) => (await import("./launch.ts")).launch(args),
  },
  {
    name: "batch",
    usage: "run <file>",
    summary: "answers a file of requests (JSONL) without a server; resumes an interrupted run",
    flags: [
      {
        flag: "--output",
        aliases: ["-o"],
        metavar: "<file>",
        text: "destination of the answers; failed requests go to <file>.errors",
        values: "file",
      },
      {
        flag: "--model",
        aliases: ["-m"],
        metavar: "<model>",
        text: "the model, as for serve; other settings come from variables and the file",
        values: "model",
      },
      jsonProgress,
    ],
    values: ["run"],
    run: async (args) => (await import("./batch.ts")).batch(args),
  },
  {
    name: "ps",
    summary: "shows the models of a server, their memory and all requests",
    flags: [json, ...serverFlags],
    run: async (args) => (await import("./ps.ts")).ps(args),
  },
  {
    name: "stop",
    usage: "[model]",
    summary: "stops a server after its running requests, or unloads one of its models",
    flags: serverFlags,
    values: "model",
    run: async (args) => (await import("./stop.ts")).stop(args),
  },
  {
    name: "join",
    usage: "[model]",
    values: "model",
    summary: "joins a server on another host, as one of the ranks of its models",
    flags: [
      { flag: "--hosts", metavar: "<file>", text: "hosts of all ranks", values: "file" },
      { flag: "--rank", metavar: "<n>", text: "this host's rank, from 1" },
      { flag: "--rank-port", metavar: "<port>", text: "the server's port (32322)" },
      { flag: "--rank-secret", metavar: "<secret>", text: "the server's secret" },
      { flag: "--stdin", text: "reads all of this from the server, over ssh" },
    ],
    run: async (args) => (await import("./join.ts")).join(args),
  },
  {
    name: "service",
    usage: serviceActions.join("|"),
    summary: "a server that starts at login; install takes a model and the settings of serve",
    flags: [
      { flag: "--follow", aliases: ["-f"], text: "logs: follow new lines" },
      { flag: "--lines", metavar: "<n>", text: "logs: number of latest lines (100)" },
    ],
    settings: true,
    values: serviceActions,
    run: async (args) => (await import("./service.ts")).service(args),
  },
  {
    name: "models",
    summary: "lists popular models, their short names, and which of them fit this machine",
    flags: [json],
    run: async (args) => (await import("./models.ts")).models(args),
  },
  {
    name: "pull",
    usage: "<model>",
    summary: "downloads a model from the Hugging Face hub into its cache",
    flags: [
      { flag: "--include", metavar: "<glob>", text: "only matching files; may be repeated" },
      json,
    ],
    run: async (args) => (await import("./models/pull.ts")).pull(args),
  },
  {
    name: "ls",
    summary: "lists the models on this machine",
    flags: [json],
    run: async (args) => (await import("./ls.ts")).ls(args),
  },
  {
    name: "show",
    usage: "[model]",
    summary: "describes a model; checks if it loads here, with how much memory and context",
    flags: [json],
    values: "model",
    run: async (args) => (await import("./show.ts")).show(args),
  },
  {
    name: "rm",
    usage: "<model>",
    summary: "removes a model, or one of its revisions, from the cache",
    flags: [{ flag: "--yes", aliases: ["-y"], text: "removes without confirmation" }],
    values: "model",
    run: async (args) => (await import("./rm.ts")).rm(args),
  },
  {
    name: "keys",
    usage: "add|ls|revoke [name]",
    summary: "manages the API keys of the server",
    flags: [
      { flag: "--tier", metavar: "<tier>", text: "tier of a new key (NORMAL)", values: tiers },
      { flag: "--requests-per-minute", metavar: "<n>", text: "rate limit of a new key" },
      { flag: "--tokens-per-minute", metavar: "<n>", text: "token limit of a new key" },
      { flag: "--concurrent", metavar: "<n>", text: "concurrent requests of a new key" },
      json,
      { flag: "--keys-file", metavar: "<file>", text: "another keys file", values: "file" },
    ],
    values: ["add", "ls", "revoke"],
    run: async (args) => (await import("./keys.ts")).keys(args),
  },
  {
    name: "doctor",
    summary: "describes this machine: device, memory, MLX, BLAS, matmul throughput",
    flags: [
      {
        flag: "--self-test",
        text: "verifies kernels, models, sampling and grammars; about a minute",
      },
      { flag: "--only", metavar: "<text>", text: "only checks whose names contain this text" },
      {
        flag: "--report",
        metavar: "<file>",
        text: "writes the self-test's results (JSON), to attach to an issue",
        values: "file",
      },
      json,
    ],
    run: async (args) => (await import("./doctor.ts")).doctor(args),
  },
  {
    name: "bench",
    usage: "[mode]",
    summary: "measures the engine, or any server with the OpenAI HTTP API",
    flags: [
      {
        flag: "--model",
        aliases: ["-m"],
        metavar: "<model>",
        text: "the model to measure",
        values: "model",
      },
      { flag: "--url", metavar: "<url>", text: "a server, instead of an engine in this process" },
      { flag: "--api-key", metavar: "<key>", text: "for that server" },
      { flag: "--chat", text: "prompts are chats, not plain text" },
      { flag: "--requests", metavar: "<n>", text: "requests per pass (8)" },
      { flag: "--max-tokens", metavar: "<n>", text: "maximum tokens of an answer (64)" },
      { flag: "--concurrency", metavar: "<n,...>", text: "levels of a sweep (1,2,4,8,16,32)" },
      {
        flag: "--max-batch-size",
        metavar: "<n>",
        text: "maximum batch of the engine (32; fewer for priority)",
      },
      { flag: "--ranks", metavar: "<n>", text: "number of processes that share the model (1)" },
      {
        flag: "--prompt-file",
        metavar: "<file>",
        text: "one prompt per line, or a JSON array, instead of the built-in prompts",
        values: "file",
      },
      { flag: "--repeat", metavar: "<n>", text: "measured passes (3)" },
      { flag: "--warmup", metavar: "<n>", text: "unmeasured passes before (1)" },
      { flag: "--slo-ttft", metavar: "<ms>", text: "TTFT target of a good request" },
      { flag: "--slo-itl", metavar: "<ms>", text: "target of its mean inter-token latency" },
      { flag: "--min-speedup", metavar: "<x>", text: "fails below this speedup" },
      {
        flag: "--json",
        metavar: "<file>",
        text: "writes all figures, machine and versions",
        values: "file",
      },
      { flag: "--plot", metavar: "<file>", text: "writes a chart (SVG)", values: "file" },
    ],
    values: ["single", "batched", "compare", "sweep", "prefix", "mixed", "priority"],
    run: async (args) => (await import("./bench.ts")).bench(args),
  },
  {
    name: "completions",
    usage: shells.join("|"),
    summary: "prints a shell completion script",
    values: shells,
    run: async (args) => {
      const { completions } = await import("./completions.ts");
      completions(args, verbs, defaultVerb);
    },
  },
  {
    name: "version",
    summary: "prints the version",
    flags: [{ flag: "--licenses", text: "prints third-party licenses" }],
    run: async (args) => (await import("./version.ts")).version(args),
  },
  {
    name: "help",
    usage: "[verb]",
    summary: "shows this text, or the help of a verb",
    get values() {
      return verbs.map(({ name }) => name);
    },
    run: async (args) => (await import("./help.ts")).help(args, verbs, defaultVerb),
  },
];
