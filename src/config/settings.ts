// The settings of `mlx-serve serve`, defined once: valid values, default and all spellings. The flags, the
// environment variables, the settings file, the help, the shell completions and the documentation are
// generated from this. Parsed sizes are in bytes and durations in milliseconds.
import { isIP } from "node:net";
import { z } from "zod";

export const sections = [
  "Model",
  "Server",
  "Security",
  "Batching",
  "Files and batches",
  "Sampling defaults",
  "Logging",
  "Machine",
] as const;

/** Metadata of a setting. */
export type About = {
  section: (typeof sections)[number];
  text: string;
  /** Placeholder for the value in the help; a switch has none. */
  metavar?: string;
  /** Other flags with a value. */
  aliases?: readonly string[];
  /** Flags without a value, and what they set. */
  sets?: Readonly<Record<string, unknown>>;
  /** Other variables. */
  variables?: readonly string[];
  /** What a value may be, for the shells. */
  values?: "model" | "file" | readonly string[];
  isList?: true;
  isSecret?: true;
};

const about = z.registry<About>();

const numeric = (raw: unknown) =>
  typeof raw === "string" && /^[+-]?(\d+\.?\d*|\.\d+)$/.test(raw) ? Number(raw) : raw;

function whole(least: number, most: number) {
  const wanted = `a whole number from ${least} to ${most}`;
  return z.preprocess(numeric, z.int(wanted).min(least, wanted).max(most, wanted));
}

function number(least: number, most: number) {
  const wanted = `a number from ${least} to ${most}`;
  return z.preprocess(numeric, z.number(wanted).min(least, wanted).max(most, wanted));
}

/** A list in the file is not accepted as a string, even if it has one item. */
const wordOf = (raw: unknown) => (typeof raw === "object" ? "" : String(raw));

/** A number with or without one of these units, as in 4GiB. */
function quantityIn(units: Readonly<Record<string, number>>) {
  return (raw: unknown) => {
    const [, count, unit = ""] = /^(\d+(?:\.\d+)?) ?([a-z]*)$/i.exec(wordOf(raw)) ?? [];
    const factor = units[unit] ?? units[unit.toLowerCase()] ?? Number.NaN;
    return factor === 1 ? Number(count) : Math.round(Number(count) * factor);
  };
}

// A bare G is left out: it is 10^9 to some programs, and 2^30 to others.
const bytes = quantityIn({
  "": 1,
  b: 1,
  ...{ kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
  ...{ kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 },
});
const milliseconds = quantityIn({ "": 1e3, ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 });
// As vLLM reads them: 32k is 32000, and 32K is 32768.
const tokens = quantityIn({ "": 1, k: 1e3, K: 2 ** 10, m: 1e6, M: 2 ** 20 });

function size(least: string, most: string) {
  const wanted = `a size from ${least} to ${most}, such as 512MB or 4GiB`;
  return z.preprocess(bytes, z.int(wanted).min(bytes(least), wanted).max(bytes(most), wanted));
}

function duration(least: string, most: string) {
  const wanted = `a time from ${least} to ${most}, such as 90s or 10m`;
  const [from, to] = [milliseconds(least), milliseconds(most)];
  return z.preprocess(milliseconds, z.int(wanted).min(from, wanted).max(to, wanted));
}

function tokenCount(least: number, most: number) {
  const wanted = `a whole number from ${least} to ${most}`;
  return z.preprocess(tokens, z.int(wanted).min(least, wanted).max(most, wanted));
}

/** The word auto, or what else it may be. */
function autoOr<T extends z.ZodType>(schema: T) {
  const isAuto = (raw: unknown) => wordOf(raw).toLowerCase() === "auto";
  return z.unknown().transform((raw, context): "auto" | z.output<T> => {
    if (isAuto(raw)) return "auto";
    const read = schema.safeParse(raw);
    if (read.success) return read.data;
    for (const { message } of read.error.issues) {
      context.issues.push({ code: "custom", message: `${message}, or auto`, input: raw });
    }
    return z.NEVER;
  });
}

const switches = new Map([
  ...["true", "on", "yes", "1"].map((word) => [word, true] as const),
  ...["false", "off", "no", "0"].map((word) => [word, false] as const),
]);

function onOff() {
  const read = (raw: unknown) => switches.get(wordOf(raw).toLowerCase());
  return z.preprocess(read, z.boolean("true or false"));
}

/** One of these, case-insensitive, or an alias of one. */
function oneOf<const T extends readonly string[]>(
  choices: T,
  others: Readonly<Record<string, T[number]>> = {},
) {
  const read = (raw: unknown) => {
    const word = wordOf(raw).toLowerCase();
    return others[word] ?? word;
  };
  return z.preprocess(read, z.enum(choices, `one of ${choices.join(", ")}`));
}

function text(
  wanted: string,
  isRight: (value: string) => boolean = (value) => value.trim() !== "",
) {
  return z.string(wanted).refine(isRight, wanted);
}

/** From a repeated flag, a comma-separated string, or a list in the file. */
function list(wanted: string, isRight?: (value: string) => boolean) {
  const read = (raw: unknown) =>
    [raw].flat().flatMap((each: unknown) => (typeof each === "string" ? listed(each) : each));
  return z.preprocess(read, z.array(text(wanted, isRight), wanted));
}

/** First and last layers, as in 0-19,20-39. */
function layerRanges() {
  const wanted = "a range of layers for each rank, such as 0-19,20-39";
  const read = (raw: unknown) =>
    wordOf(raw)
      .split(",")
      .map((part) => {
        const [, first, last] = /^\s*(\d+)-(\d+)\s*$/.exec(part) ?? [];
        return { first: Number(first), end: Number(last) + 1 };
      });
  const range = z.object({ first: z.int(wanted), end: z.int(wanted) });
  return z.preprocess(read, z.array(range, wanted));
}

function listed(value: string): unknown {
  if (!/^\[\s*"/.test(value)) return value.split(",").map((part) => part.trim());
  try {
    return JSON.parse(value); // as vLLM takes --allowed-origins
  } catch {
    return undefined;
  }
}

const isHost = (host: string) => isIP(host) !== 0 || /^[\w-]+(\.[\w-]+)*\.?$/.test(host);
const isOrigin = (origin: string) =>
  origin === "*" || /^[a-z][a-z\d+.-]*:\/\/[^\s/]+$/i.test(origin);

const shareWanted = "a number above 0 and up to 1";
const dtypes = ["auto", "float32", "float16", "bfloat16"] as const;
const logLevels = ["debug", "info", "warn", "error"] as const;
const logFormats = ["auto", "json", "pretty"] as const;
const backends = ["cpu", "metal", "cuda"] as const;
const parallels = ["auto", "tensor", "pipeline"] as const;

export const Settings = z.strictObject({
  model: text("the name of a model")
    .prefault("default")
    .register(about, {
      section: "Model",
      text: 'What is served: a folder, a GGUF file, a repo of the cache (org/name), a short name of `mlx-serve models`, or "default". It may stand without its flag.',
      metavar: "<model>",
      aliases: ["-m"],
      values: "model",
    }),
  servedModelName: list("names of models, or pattern=model", (name) =>
    /^(?=.{1,256}$)[^\s\p{Cc}=]+(=[^\s\p{Cc}=]+)?$/u.test(name),
  )
    .prefault([])
    .register(about, {
      section: "Model",
      text: "Names for it in place of its own: it is listed under each, and the first is in answers; requests may still ask for it by its own name and by default. Or pattern=model, as in claude-*=default: names that fit mean that model, where no model has them.",
      metavar: "<name>",
      aliases: ["--alias", "-a"],
      isList: true,
    }),
  dtype: oneOf(dtypes, { half: "float16", float: "float32" }).prefault("auto").register(about, {
    section: "Model",
    text: "The type of the weights that are not quantized, and of the KV cache; auto is the model's own.",
    metavar: "<type>",
    values: dtypes,
  }),
  keepUnpacked: onOff().optional().register(about, {
    section: "Model",
    text: "On CUDA, also keep a dequantized 16-bit copy of weights of 8 bits and less: prefill and large batches are faster, at the cost of its memory. Without it, where the copy takes a tenth of the GPU's free memory or less.",
  }),
  maxModelLen: autoOr(tokenCount(0, 2 ** 24))
    .transform((length) => (length === 0 ? undefined : length))
    .optional()
    .register(about, {
      section: "Model",
      text: "The longest context, prompt and answer together; without it, or with 0, the model's own, or what the default KV cache holds. With auto, the longest that there is memory for.",
      metavar: "<tokens>",
      aliases: ["--ctx-size", "-c"],
    }),
  chatTemplate: text("the path of a file", (path) => path.trim() !== "" && !/\{[{%]/.test(path))
    .optional()
    .register(about, {
      section: "Model",
      text: "A file with a chat template (Jinja) to use in place of the model's own.",
      metavar: "<file>",
      aliases: ["--chat-template-file"],
      values: "file",
    }),
  maxModels: whole(1, 64)
    .prefault(2)
    .register(about, {
      section: "Model",
      text: "Models loaded at once; the least recently used idle one is evicted for another.",
      metavar: "<n>",
      aliases: ["--models-max"],
    }),
  idleUnload: duration("1s", "24d")
    .optional()
    .register(about, {
      section: "Model",
      text: "Unload a model after it has been idle this long; without it, none is unloaded.",
      metavar: "<time>",
      aliases: ["--sleep-idle-seconds"],
    }),

  host: text("an address or a name, without a port", isHost).prefault("127.0.0.1").register(about, {
    section: "Server",
    text: "The address to listen on. One that others can reach needs keys.",
    metavar: "<address>",
  }),
  port: whole(0, 65535).prefault(8080).register(about, {
    section: "Server",
    text: "The port to listen on; 0 takes any that is free.",
    metavar: "<n>",
  }),
  ollamaPort: whole(0, 65535).optional().register(about, {
    section: "Server",
    text: "A second port to listen on; clients of Ollama look for 11434.",
    metavar: "<n>",
  }),
  maxBodySize: size("1KiB", "1GiB").prefault("16MiB").register(about, {
    section: "Server",
    text: "The largest body of a request.",
    metavar: "<size>",
  }),
  streamBuffer: whole(1, 2 ** 20)
    .prefault(2048)
    .register(about, {
      section: "Server",
      text: "How many tokens a client may fall behind its stream before it is disconnected.",
      metavar: "<tokens>",
    }),
  maxResponseStorage: size("0", "16TiB").prefault("64MiB").register(about, {
    section: "Server",
    text: "What the stored responses of one key may take; the oldest are deleted. 0 stores none.",
    metavar: "<size>",
  }),
  requestTimeout: duration("1s", "24h").optional().register(about, {
    section: "Server",
    text: "Abort a request that takes longer; without it, there is no limit.",
    metavar: "<time>",
  }),
  drainTimeout: duration("0s", "1h")
    .prefault("30s")
    .register(about, {
      section: "Server",
      text: "How long running requests may take to finish when the server shuts down.",
      metavar: "<time>",
      aliases: ["--shutdown-timeout"],
    }),
  config: text("the path of a file").optional().register(about, {
    section: "Server",
    text: "A file of settings (TOML); without it, mlx-serve/config.toml in $XDG_CONFIG_HOME or ~/.config, where it is there.",
    metavar: "<file>",
    values: "file",
  }),

  apiKey: list("keys of printable characters", (key) => /^[!-~]+$/.test(key))
    .prefault([])
    .register(about, {
      section: "Security",
      text: "A key that clients must send. Other users of the machine can see flags: the variable and the files are safer.",
      metavar: "<key>",
      isList: true,
      isSecret: true,
    }),
  keysFile: text("the path of a file").optional().register(about, {
    section: "Security",
    text: "A file of keys with names, tiers and limits, kept by `mlx-serve keys`.",
    metavar: "<file>",
    values: "file",
  }),
  insecureNoAuth: onOff().prefault(false).register(about, {
    section: "Security",
    text: "Listen on an address that others can reach, without any key.",
  }),
  allowedHosts: list("names or addresses of this server", (host) => /^[^\s/]+$/.test(host))
    .prefault([])
    .register(about, {
      section: "Security",
      text: "Names accepted in the Host header of requests, in addition to the address it listens on.",
      metavar: "<name>",
      isList: true,
    }),
  allowedOrigins: list("origins such as https://app.example, or *", isOrigin)
    .prefault([])
    .register(about, {
      section: "Security",
      text: "Origins of web pages that may send requests; * is any.",
      metavar: "<origin>",
      aliases: ["--cors-origins"],
      isList: true,
    }),

  batching: onOff()
    .prefault(true)
    .register(about, {
      section: "Batching",
      text: "Run many requests in one batch. Without it they are answered one at a time.",
      sets: {
        "--enable-batching": true,
        "--cont-batching": true,
        "-cb": true,
        "--no-cont-batching": false,
        "-nocb": false,
      },
    }),
  maxBatchSize: whole(1, 1024)
    .prefault(32)
    .register(about, {
      section: "Batching",
      text: "Sequences that run at once.",
      metavar: "<n>",
      aliases: ["--max-num-seqs", "-np", "--decode-concurrency"],
    }),
  tokenBudget: tokenCount(32, 2 ** 17)
    .optional()
    .register(about, {
      section: "Batching",
      text: "The most tokens that one step computes, prefill and decode together; by default 8448 on an NVIDIA GPU and 512 elsewhere, or fewer where memory is short. A step has fewer where they would take longer than --step-time, and on an NVIDIA GPU 2048 at most beside twelve streams for each prompt.",
      metavar: "<tokens>",
      aliases: ["--max-num-batched-tokens", "--batch-size", "-b"],
    }),
  stepTime: duration("1ms", "1m").optional().register(about, {
    section: "Batching",
    text: "How long a step with prompts may take: streams wait for it, and on a Mac the screen may. By default 100ms on a Mac's GPU and 250ms elsewhere.",
    metavar: "<time>",
  }),
  maxQueue: whole(1, 100_000).prefault(1000).register(about, {
    section: "Batching",
    text: "Requests that may wait in the queue; more are refused. A key may have as many as it leaves places free.",
    metavar: "<n>",
  }),
  prefixCaching: onOff()
    .prefault(true)
    .register(about, {
      section: "Batching",
      text: "Reuse the KV blocks of prompts that share a prefix.",
      sets: {
        "--enable-prefix-caching": true,
        "--cache-prompt": true,
        "--no-enable-prefix-caching": false,
        "--no-cache-prompt": false,
      },
    }),
  agentMarks: onOff().prefault(false).register(about, {
    section: "Batching",
    text: "Keep what agents write into prompts that means nothing and changes with every request, such as Claude Code's billing line: prefixes behind it are then never reused.",
  }),
  warmUp: onOff().prefault(false).register(about, {
    section: "Batching",
    text: "Compile a GPU's kernels when a model is loaded, for all sizes of batches, and not when they are first needed.",
  }),
  kvMemory: size("1MiB", "16TiB")
    .optional()
    .register(about, {
      section: "Batching",
      text: "Memory for the KV cache of a model.",
      metavar: "<size>",
      aliases: ["--kv-cache-memory-bytes"],
    }),
  snapshotMemory: size("1MiB", "16TiB").optional().register(about, {
    section: "Batching",
    text: "Of the KV cache's memory, what is for snapshots of recurrent states; by default a quarter.",
    metavar: "<size>",
  }),
  blockPoolSize: whole(1, 2 ** 24)
    .optional()
    .register(about, {
      section: "Batching",
      text: "The KV cache of a model in blocks of 32 tokens, in place of a size in bytes.",
      metavar: "<blocks>",
    }),

  dataDir: text("the path of a folder").optional().register(about, {
    section: "Files and batches",
    text: "Where stored responses, uploaded files and batches are kept; without it, the folder data in the cache folder of mlx-serve.",
    metavar: "<folder>",
    values: "file",
  }),
  maxFileSize: size("1KiB", "16GiB").prefault("200MiB").register(about, {
    section: "Files and batches",
    text: "The largest file that may be uploaded.",
    metavar: "<size>",
  }),
  maxFileStorage: size("1KiB", "16TiB").prefault("4GiB").register(about, {
    section: "Files and batches",
    text: "What the files of one key may take; once they do, no more can be uploaded.",
    metavar: "<size>",
  }),
  maxFiles: whole(1, 1_000_000).prefault(1000).register(about, {
    section: "Files and batches",
    text: "Files that one key may have.",
    metavar: "<n>",
  }),
  maxBatches: whole(1, 10_000).prefault(16).register(about, {
    section: "Files and batches",
    text: "Unfinished batches that one key may have.",
    metavar: "<n>",
  }),

  temperature: number(0, 2)
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "The default temperature of requests; 0 is greedy.",
      metavar: "<x>",
      aliases: ["--temp"],
    }),
  topP: z
    .preprocess(numeric, z.number(shareWanted).gt(0, shareWanted).max(1, shareWanted))
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "The default top_p of requests.",
      metavar: "<x>",
    }),
  topK: whole(0, 1_000_000).optional().register(about, {
    section: "Sampling defaults",
    text: "The default top_k of requests; 0 is off.",
    metavar: "<n>",
  }),
  minP: number(0, 1).optional().register(about, {
    section: "Sampling defaults",
    text: "The default min_p of requests.",
    metavar: "<x>",
  }),
  maxTokens: whole(1, 2 ** 24)
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "The default max_tokens of requests.",
      metavar: "<tokens>",
      aliases: ["--predict", "--n-predict", "-n"],
    }),

  logLevel: oneOf(logLevels, { warning: "warn" })
    .prefault("info")
    .register(about, {
      section: "Logging",
      text: "The lowest level that is logged; debug has a line for each step.",
      metavar: "<level>",
      sets: { "--verbose": "debug" },
      variables: ["MLX_SERVE_LOG"],
      values: logLevels,
    }),
  logFormat: oneOf(logFormats).prefault("auto").register(about, {
    section: "Logging",
    text: "The format of the log; auto is pretty on a terminal and JSON elsewhere.",
    metavar: "<format>",
    values: logFormats,
  }),
  logPrompts: onOff().prefault(false).register(about, {
    section: "Logging",
    text: "Log the text of prompts too.",
  }),

  backend: oneOf(backends).optional().register(about, {
    section: "Machine",
    text: "The device to compute on; without it, Metal on a Mac, else the CPU.",
    metavar: "<name>",
    values: backends,
  }),
  threads: whole(1, 1024)
    .optional()
    .register(about, {
      section: "Machine",
      text: "Threads of the BLAS; without it, one per core.",
      metavar: "<n>",
      aliases: ["-t"],
    }),
  ranks: whole(1, 64).prefault(1).register(about, {
    section: "Machine",
    text: "Divide each model among so many processes of this machine.",
    metavar: "<n>",
  }),
  hosts: text("the name of a file").optional().register(about, {
    section: "Machine",
    text: "Divide each model among the hosts of this file, as mlx.launch has it; this is the first.",
    metavar: "<file>",
    values: "file",
  }),
  parallel: oneOf(parallels).prefault("auto").register(about, {
    section: "Machine",
    text: "What each rank has: a part of every layer (tensor), or some of the layers (pipeline); auto is tensor on one machine and pipeline on several.",
    metavar: "<way>",
    values: parallels,
  }),
  layers: layerRanges().optional().register(about, {
    section: "Machine",
    text: "With --parallel pipeline: the layers of each rank, as in 0-19,20-39; without it, as many as its part of the memory.",
    metavar: "<ranges>",
  }),
  rankPort: whole(1, 65_000).prefault(32_322).register(about, {
    section: "Machine",
    text: "With --hosts: where ranks reach this server, and each other at the ports that follow.",
    metavar: "<port>",
  }),
  rankSecret: text("a secret of 16 characters or more", (value) => value.length >= 16)
    .optional()
    .register(about, {
      section: "Machine",
      text: "With --hosts: what all ranks must know. Better as a variable than as a flag.",
      metavar: "<secret>",
      isSecret: true,
    }),
});
export type Settings = z.infer<typeof Settings>;

/** A setting with its spellings. */
export type Setting = About & {
  key: keyof Settings;
  flag: string;
  variable: string;
  /** The key in the file; dashes are accepted too. */
  name: string;
  /** As it would be written. */
  default?: string;
};

export const settingList: readonly Setting[] = Settings.keyof().options.map((key) => {
  const schema = Settings.shape[key];
  const name = key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const written = schema instanceof z.ZodPrefault ? String(schema.def.defaultValue) : "";
  return {
    ...about.get(schema)!,
    key,
    flag: `--${name.replaceAll("_", "-")}`,
    variable: `MLX_SERVE_${name.toUpperCase()}`,
    name,
    ...(written !== "" && { default: written }),
  };
});

/** Every flag of a setting; `sets` is present if the flag takes no value. */
export function flagsOf(setting: Setting): { flag: string; sets?: unknown }[] {
  const { flag, metavar, aliases = [], sets = {} } = setting;
  const own = metavar
    ? [{ flag }]
    : [
        { flag, sets: true },
        { flag: offFlag(setting), sets: false },
      ];
  return [
    ...own,
    ...aliases.map((alias) => ({ flag: alias })),
    ...Object.entries(sets).map(([other, value]) => ({ flag: other, sets: value })),
  ];
}

/** The flag that disables a switch. */
export function offFlag({ flag }: Pick<Setting, "flag">): string {
  return flag.replace("--", "--no-");
}
