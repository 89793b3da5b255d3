// The verbs of the command line, in one table: what runs them, and what the help and the shells'
// completions tell of them. Each is imported when it is asked for, so that none waits for the others.
import type { Setting } from "../config/settings.ts";

/** One of a verb's flags, told as the settings of `serve` are. */
export type Flag = Pick<Setting, "flag" | "aliases" | "metavar" | "text" | "values" | "default">;

export type Verb = {
  name: string;
  /** What comes after its name. */
  usage?: string;
  summary: string;
  /** Its own; "settings": those of src/config. */
  flags?: readonly Flag[] | "settings";
  /** What its arguments may be, for the shells. */
  values?: Setting["values"];
  run: (args: string[]) => void | Promise<void>;
};

/** What a command line without a verb means. */
export const defaultVerb = "serve";

const json: Flag = { flag: "--json", text: "for programs" };
const tiers = ["HIGH", "NORMAL", "LOW"];
const shells = ["bash", "zsh", "fish"];

export const verbs: readonly Verb[] = [
  {
    name: "serve",
    usage: "[model]",
    summary: "a model over the OpenAI HTTP API",
    flags: "settings",
    values: "model",
    run: async (args) => (await import("./serve.ts")).serve(args),
  },
  {
    name: "run",
    usage: "[model] [prompt]",
    summary: "an answer in the terminal; a chat where no prompt is given",
    flags: [
      { flag: "--max-tokens", metavar: "<n>", text: "the longest answer (1024)" },
      { flag: "--temperature", metavar: "<x>", text: "0 is greedy (0)" },
      { flag: "--top-p", metavar: "<x>", text: "how much of the likeliest to choose from (1)" },
      { flag: "--seed", metavar: "<n>", text: "the same answer each time" },
      { flag: "--system", metavar: "<text>", text: "what the model is told first" },
      {
        flag: "--dtype",
        metavar: "<type>",
        text: "of the weights that are not quantized",
        values: ["float32", "float16", "bfloat16"],
      },
    ],
    values: "model",
    run: async (args) => (await import("./run.ts")).run(args),
  },
  {
    name: "pull",
    usage: "<repo>",
    summary: "a model from the Hugging Face hub into its cache",
    flags: [{ flag: "--include", metavar: "<glob>", text: "these files only; may be repeated" }],
    run: async (args) => (await import("./pull.ts")).pull(args),
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
    summary: "what a model is, from its config and the headers of its weights",
    flags: [json],
    values: "model",
    run: async (args) => (await import("./show.ts")).show(args),
  },
  {
    name: "rm",
    usage: "<repo>",
    summary: "a model, or one revision of it, out of the cache",
    flags: [{ flag: "--yes", aliases: ["-y"], text: "without asking" }],
    values: "model",
    run: async (args) => (await import("./rm.ts")).rm(args),
  },
  {
    name: "keys",
    usage: "add|ls|revoke [name]",
    summary: "who may call the server",
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
    run: async () => (await import("./doctor.ts")).doctor(),
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
    run: async () => (await import("./version.ts")).version(),
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
