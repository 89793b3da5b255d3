// The verbs of the command line in one table, with what the help and the shell completions show for them.
// Each is imported on demand, to keep start-up fast.
import type { Setting } from "../config/settings.ts";

/** A verb's flag, described like a setting of `serve`. */
export type Flag = Pick<Setting, "flag" | "aliases" | "metavar" | "text" | "values" | "default">;

export type Verb = {
  name: string;
  /** Its arguments. */
  usage?: string;
  summary: string;
  flags?: readonly Flag[];
  /** It takes those of src/config too. */
  settings?: true;
  /** Values of its arguments, for shell completion. */
  values?: Setting["values"];
  run: (args: string[]) => void | Promise<void>;
};

/** The verb of a command line that names none. */
export const defaultVerb = "serve";

const json: Flag = { flag: "--json", text: "for programs" };
const jsonProgress: Flag = { flag: "--json", text: "how far it is, for programs" };
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
    summary: "a model over the OpenAI HTTP API",
    settings: true,
    values: "model",
    run: async (args) => (await import("./serve.ts")).serve(args),
  },
  {
    name: "run",
    usage: "[model] [prompt]",
    summary: "an answer in the terminal; a chat where no prompt is given",
    flags: [
      {
        flag: "--max-tokens",
        aliases: ["--predict", "--n-predict", "-n"],
        metavar: "<n>",
        text: "the longest answer (1024)",
      },
      { flag: "--temperature", aliases: ["--temp"], metavar: "<x>", text: "0 is greedy (0)" },
      { flag: "--top-p", metavar: "<x>", text: "nucleus sampling (1)" },
      { flag: "--top-k", metavar: "<n>", text: "of the likeliest tokens; 0 is off (0)" },
      { flag: "--min-p", metavar: "<x>", text: "of the likeliest token's share (0)" },
      { flag: "--seed", metavar: "<n>", text: "for reproducible sampling" },
      { flag: "--system", metavar: "<text>", text: "the system prompt" },
      {
        flag: "--dtype",
        metavar: "<type>",
        text: "of the weights that are not quantized",
        values: ["auto", "float32", "float16", "bfloat16"],
      },
      { flag: "--local", text: "without the local server" },
      ...serverFlags,
    ],
    values: "model",
    run: async (args) => (await import("./run.ts")).run(args),
  },
  {
    name: "launch",
    usage: `${agentNames.join("|")} [-- args]`,
    summary: "a coding agent on the local server, which is started if there is none",
    flags: [
      { flag: "--print", text: "what to set in a shell instead" },
      {
        flag: "--model",
        aliases: ["-m"],
        metavar: "<model>",
        text: "what it uses, in place of the server's first; or what is served, if there is none",
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
    summary:
      "the answers to a file of requests (JSONL), without a server; takes up again what was ended",
    flags: [
      {
        flag: "--output",
        aliases: ["-o"],
        metavar: "<file>",
        text: "where the answers go; failed requests are in <file>.errors beside it",
        values: "file",
      },
      {
        flag: "--model",
        aliases: ["-m"],
        metavar: "<model>",
        text: "what answers, as for serve; other settings are taken from variables and the file",
        values: "model",
      },
      jsonProgress,
    ],
    values: ["run"],
    run: async (args) => (await import("./batch.ts")).batch(args),
  },
  {
    name: "ps",
    summary: "what a server is doing: its models, their memory, every request",
    flags: [json, ...serverFlags],
    run: async (args) => (await import("./ps.ts")).ps(args),
  },
  {
    name: "stop",
    usage: "[model]",
    summary: "a server, once it has finished what is under way, or one model of it",
    flags: serverFlags,
    values: "model",
    run: async (args) => (await import("./stop.ts")).stop(args),
  },
  {
    name: "join",
    usage: "[model]",
    values: "model",
    summary: "a server on another host, as one of the ranks that it divides its models among",
    flags: [
      { flag: "--hosts", metavar: "<file>", text: "of all ranks, as the server's", values: "file" },
      { flag: "--rank", metavar: "<n>", text: "which of them this is, from 1" },
      { flag: "--rank-port", metavar: "<port>", text: "where the server listens (32322)" },
      { flag: "--rank-secret", metavar: "<secret>", text: "the server's" },
      { flag: "--stdin", text: "all of this as the server writes it, over ssh" },
    ],
    run: async (args) => (await import("./join.ts")).join(args),
  },
  {
    name: "service",
    usage: serviceActions.join("|"),
    summary: "a server that starts at login; install takes a model and settings as serve does",
    flags: [
      { flag: "--follow", aliases: ["-f"], text: "logs: go on with what is written" },
      { flag: "--lines", metavar: "<n>", text: "logs: how many of the last (100)" },
    ],
    settings: true,
    values: serviceActions,
    run: async (args) => (await import("./service.ts")).service(args),
  },
  {
    name: "models",
    summary: "short names of popular models, and which of them fit this machine",
    flags: [json],
    run: async (args) => (await import("./models.ts")).models(args),
  },
  {
    name: "pull",
    usage: "<model>",
    summary: "a model from the Hugging Face hub into its cache",
    flags: [
      { flag: "--include", metavar: "<glob>", text: "these files only; may be repeated" },
      json,
    ],
    run: async (args) => (await import("./models/pull.ts")).pull(args),
  },
  {
    name: "ls",
    summary: "the models on this machine",
    flags: [json],
    run: async (args) => (await import("./ls.ts")).ls(args),
  },
  {
    name: "show",
    usage: "[model]",
    summary: "what a model is, and whether it will load here, in what memory, at what length",
    flags: [json],
    values: "model",
    run: async (args) => (await import("./show.ts")).show(args),
  },
  {
    name: "rm",
    usage: "<model>",
    summary: "a model, or one revision of it, out of the cache",
    flags: [{ flag: "--yes", aliases: ["-y"], text: "without asking" }],
    values: "model",
    run: async (args) => (await import("./rm.ts")).rm(args),
  },
  {
    name: "keys",
    usage: "add|ls|revoke [name]",
    summary: "API keys for the server",
    flags: [
      { flag: "--tier", metavar: "<tier>", text: "of a new key (NORMAL)", values: tiers },
      { flag: "--requests-per-minute", metavar: "<n>", text: "that a new key may send" },
      { flag: "--tokens-per-minute", metavar: "<n>", text: "that a new key may use" },
      { flag: "--concurrent", metavar: "<n>", text: "requests of a new key at once" },
      json,
      { flag: "--keys-file", metavar: "<file>", text: "another file of keys", values: "file" },
    ],
    values: ["add", "ls", "revoke"],
    run: async (args) => (await import("./keys.ts")).keys(args),
  },
  {
    name: "doctor",
    summary: "what this machine has: device, memory, MLX, BLAS, how fast it multiplies",
    flags: [
      {
        flag: "--self-test",
        text: "whether it computes what it should: kernels, models, sampling, grammars; about a minute",
      },
      {
        flag: "--only",
        metavar: "<text>",
        text: "checks of the self-test with this in their names",
      },
      {
        flag: "--report",
        metavar: "<file>",
        text: "what the self-test found (JSON), to attach to an issue",
        values: "file",
      },
      json,
    ],
    run: async (args) => (await import("./doctor.ts")).doctor(args),
  },
  {
    name: "bench",
    usage: "[mode]",
    summary: "how fast the engine is, or any server of the OpenAI HTTP API",
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
      { flag: "--requests", metavar: "<n>", text: "of a pass (8)" },
      { flag: "--max-tokens", metavar: "<n>", text: "of an answer (64)" },
      { flag: "--concurrency", metavar: "<n,...>", text: "of a sweep (1,2,4,8,16,32)" },
      {
        flag: "--max-batch-size",
        metavar: "<n>",
        text: "of the engine (32, or few for priority)",
      },
      { flag: "--ranks", metavar: "<n>", text: "processes that the model is divided among (1)" },
      {
        flag: "--prompt-file",
        metavar: "<file>",
        text: "a prompt a line, or a JSON array, in place of the built-in ones",
        values: "file",
      },
      { flag: "--repeat", metavar: "<n>", text: "passes that are counted (3)" },
      { flag: "--warmup", metavar: "<n>", text: "passes before them (1)" },
      { flag: "--slo-ttft", metavar: "<ms>", text: "a good request has its first token within" },
      { flag: "--slo-itl", metavar: "<ms>", text: "and has others each within, on average" },
      { flag: "--min-speedup", metavar: "<x>", text: "fail below it" },
      {
        flag: "--json",
        metavar: "<file>",
        text: "all figures, machine and versions",
        values: "file",
      },
      { flag: "--plot", metavar: "<file>", text: "a picture (SVG)", values: "file" },
    ],
    values: ["single", "batched", "compare", "sweep", "prefix", "mixed", "priority"],
    run: async (args) => (await import("./bench.ts")).bench(args),
  },
  {
    name: "completions",
    usage: shells.join("|"),
    summary: "a script that completes all this in a shell",
    values: shells,
    run: async (args) => {
      const { completions } = await import("./completions.ts");
      completions(args, verbs, defaultVerb);
    },
  },
  {
    name: "version",
    summary: "the version of mlx-serve",
    flags: [{ flag: "--licenses", text: "of the software inside it" }],
    run: async (args) => (await import("./version.ts")).version(args),
  },
  {
    name: "help",
    usage: "[verb]",
    summary: "this text, or that of a verb",
    get values() {
      return verbs.map(({ name }) => name);
    },
    run: async (args) => (await import("./help.ts")).help(args, verbs, defaultVerb),
  },
];
