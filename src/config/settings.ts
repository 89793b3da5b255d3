// The settings of `mlx-serve serve`: valid values, defaults and all spellings. Flags, environment variables, the
// settings file, help, shell completions and documentation are generated from this table. Parsed sizes are in
// bytes, durations in milliseconds.
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

/** The description of a setting, apart from its values. */
export type About = {
  section: (typeof sections)[number];
  text: string;
  /** Placeholder for the value in the help; absent for a switch. */
  metavar?: string;
  /** Further flags that take the same value. */
  aliases?: readonly string[];
  /** Further flags without a value, and the value that each sets. */
  sets?: Readonly<Record<string, unknown>>;
  /** Further environment variables. */
  variables?: readonly string[];
  /** Values that shell completion offers. */
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

/** Returns a raw value as text; a list or table in the file becomes empty text, which no setting accepts. */
const wordOf = (raw: unknown) => (typeof raw === "object" ? "" : String(raw));

/** Returns a parser of numbers with an optional unit, such as 4GiB. */
function quantityIn(units: Readonly<Record<string, number>>) {
  return (raw: unknown) => {
    const [, count, unit = ""] = /^(\d+(?:\.\d+)?) ?([a-z]*)$/i.exec(wordOf(raw)) ?? [];
    const factor = units[unit] ?? units[unit.toLowerCase()] ?? Number.NaN;
    return factor === 1 ? Number(count) : Math.round(Number(count) * factor);
  };
}

// The units lack G, which is 10^9 in some programs and 2^30 in others.
const bytes = quantityIn({
  "": 1,
  b: 1,
  ...{ kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
  ...{ kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 },
});
const milliseconds = quantityIn({ "": 1e3, ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 });
// k is 1000 and K is 1024, as in vLLM: 32k is 32000, 32K is 32768.
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

/** Accepts the word auto, or a value of the schema. */
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

/** Accepts one of the choices or aliases, case-insensitively. */
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

/** Accepts a repeated flag, a comma-separated string, or a list in the file. */
function list(wanted: string, isRight?: (value: string) => boolean) {
  const read = (raw: unknown) =>
    [raw].flat().flatMap((each: unknown) => (typeof each === "string" ? listed(each) : each));
  return z.preprocess(read, z.array(text(wanted, isRight), wanted));
}

/** Accepts the first and last layer of each rank, such as 0-19,20-39. */
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
    return JSON.parse(value); // vLLM's format of --allowed-origins
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
      text: 'The model to serve: a folder, a GGUF file, a repo of the cache (org/name), a short name listed by `mlx-serve models`, or "default". The flag itself may be omitted.',
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
      text: 'Names of the served model. It is listed under each; answers use the first; its own name and "default" keep working. Or pattern=model, such as claude-*=default, which maps all other names that match to a model.',
      metavar: "<name>",
      aliases: ["--alias", "-a"],
      isList: true,
    }),
  dtype: oneOf(dtypes, { half: "float16", float: "float32" }).prefault("auto").register(about, {
    section: "Model",
    text: "Data type of unquantized weights and of the KV cache; auto uses the model's own.",
    metavar: "<type>",
    values: dtypes,
  }),
  keepUnpacked: onOff().optional().register(about, {
    section: "Model",
    text: "On CUDA, also keep a dequantized 16-bit copy of quantized weights, which speeds up prefill and large batches but takes memory. By default, only if the copy takes at most a tenth of the GPU's free memory.",
  }),
  maxModelLen: autoOr(tokenCount(0, 2 ** 24))
    .transform((length) => (length === 0 ? undefined : length))
    .optional()
    .register(about, {
      section: "Model",
      text: "Maximum context length, prompt and answer together. By default, or with 0, the model's own, or less if the default KV cache is smaller; auto uses the maximum that fits in memory.",
      metavar: "<tokens>",
      aliases: ["--ctx-size", "-c"],
    }),
  chatTemplate: text("the path of a file", (path) => path.trim() !== "" && !/\{[{%]/.test(path))
    .optional()
    .register(about, {
      section: "Model",
      text: "A file with a Jinja chat template that replaces the model's own.",
      metavar: "<file>",
      aliases: ["--chat-template-file"],
      values: "file",
    }),
  maxModels: whole(1, 64)
    .prefault(2)
    .register(about, {
      section: "Model",
      text: "Maximum number of loaded models; to load another, the least recently used idle one is unloaded.",
      metavar: "<n>",
      aliases: ["--models-max"],
    }),
  idleUnload: duration("1s", "24d")
    .optional()
    .register(about, {
      section: "Model",
      text: "Idle time after which a model is unloaded; never by default.",
      metavar: "<time>",
      aliases: ["--sleep-idle-seconds"],
    }),

  host: text("an address or a name, without a port", isHost).prefault("127.0.0.1").register(about, {
    section: "Server",
    text: "The address to listen on. Keys are required if other machines can reach it.",
    metavar: "<address>",
  }),
  port: whole(0, 65535).prefault(8080).register(about, {
    section: "Server",
    text: "The port to listen on; 0 chooses a free one.",
    metavar: "<n>",
  }),
  ollamaPort: whole(0, 65535).optional().register(about, {
    section: "Server",
    text: "A second port to listen on; clients of Ollama expect 11434.",
    metavar: "<n>",
  }),
  maxBodySize: size("1KiB", "1GiB").prefault("16MiB").register(about, {
    section: "Server",
    text: "Maximum size of a request body.",
    metavar: "<size>",
  }),
  streamBuffer: whole(1, 2 ** 20)
    .prefault(2048)
    .register(about, {
      section: "Server",
      text: "Maximum unread tokens of a stream before its client is disconnected.",
      metavar: "<tokens>",
    }),
  maxResponseStorage: size("0", "16TiB").prefault("64MiB").register(about, {
    section: "Server",
    text: "Maximum storage for responses per key; the oldest are deleted. 0 stores none.",
    metavar: "<size>",
  }),
  requestTimeout: duration("1s", "24h").optional().register(about, {
    section: "Server",
    text: "Maximum duration of a request; unlimited by default.",
    metavar: "<time>",
  }),
  drainTimeout: duration("0s", "1h")
    .prefault("30s")
    .register(about, {
      section: "Server",
      text: "Maximum time that running requests get to finish at shutdown.",
      metavar: "<time>",
      aliases: ["--shutdown-timeout"],
    }),
  config: text("the path of a file").optional().register(about, {
    section: "Server",
    text: "A TOML file of settings; by default mlx-serve/config.toml in $XDG_CONFIG_HOME or ~/.config, if it exists.",
    metavar: "<file>",
    values: "file",
  }),

  apiKey: list("keys of printable characters", (key) => /^[!-~]+$/.test(key))
    .prefault([])
    .register(about, {
      section: "Security",
      text: "A key that clients must send. Flags are visible to other users of the machine: the variable and the files are safer.",
      metavar: "<key>",
      isList: true,
      isSecret: true,
    }),
  keysFile: text("the path of a file").optional().register(about, {
    section: "Security",
    text: "A file of keys with names, tiers and limits, managed by `mlx-serve keys`.",
    metavar: "<file>",
    values: "file",
  }),
  insecureNoAuth: onOff().prefault(false).register(about, {
    section: "Security",
    text: "Allow an address that other machines can reach without any key.",
  }),
  allowedHosts: list("names or addresses of this server", (host) => /^[^\s/]+$/.test(host))
    .prefault([])
    .register(about, {
      section: "Security",
      text: "Names accepted in the Host header, in addition to the address of --host.",
      metavar: "<name>",
      isList: true,
    }),
  allowedOrigins: list("origins such as https://app.example, or *", isOrigin)
    .prefault([])
    .register(about, {
      section: "Security",
      text: "Origins of web pages that may send requests; * allows any.",
      metavar: "<origin>",
      aliases: ["--cors-origins"],
      isList: true,
    }),

  batching: onOff()
    .prefault(true)
    .register(about, {
      section: "Batching",
      text: "Run requests concurrently in one batch; otherwise, one at a time.",
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
      text: "Maximum sequences that run concurrently.",
      metavar: "<n>",
      aliases: ["--max-num-seqs", "-np", "--decode-concurrency"],
    }),
  tokenBudget: tokenCount(32, 2 ** 17)
    .optional()
    .register(about, {
      section: "Batching",
      text: "Maximum tokens per step, prefill and decode together; by default 8448 on an NVIDIA GPU and 512 elsewhere, or fewer if memory is short. A step computes fewer if it would exceed --step-time, and on an NVIDIA GPU at most 2048 if twelve or more streams decode per prompt.",
      metavar: "<tokens>",
      aliases: ["--max-num-batched-tokens", "--batch-size", "-b"],
    }),
  stepTime: duration("1ms", "1m").optional().register(about, {
    section: "Batching",
    text: "Target duration of a step with prefill, during which streams stall, and on a Mac possibly the screen; by default 100ms on a Mac's GPU and 250ms elsewhere.",
    metavar: "<time>",
  }),
  maxQueue: whole(1, 100_000).prefault(1000).register(about, {
    section: "Batching",
    text: "Maximum queued requests; more are refused. A key may hold at most as many places as remain free.",
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
    text: "Keep per-request marks that agents write into prompts, such as Claude Code's billing line. By default they are removed, since they prevent prefix cache hits.",
  }),
  warmUp: onOff().prefault(false).register(about, {
    section: "Batching",
    text: "Compile GPU kernels for all batch sizes when a model is loaded, instead of on first use.",
  }),
  kvMemory: size("1MiB", "16TiB")
    .optional()
    .register(about, {
      section: "Batching",
      text: "Size of a model's KV cache.",
      metavar: "<size>",
      aliases: ["--kv-cache-memory-bytes"],
    }),
  snapshotMemory: size("1MiB", "16TiB").optional().register(about, {
    section: "Batching",
    text: "Part of the KV cache's memory for snapshots of recurrent states; by default a quarter.",
    metavar: "<size>",
  }),
  blockPoolSize: whole(1, 2 ** 24)
    .optional()
    .register(about, {
      section: "Batching",
      text: "Size of a model's KV cache in blocks of 32 tokens, instead of bytes.",
      metavar: "<blocks>",
    }),

  dataDir: text("the path of a folder").optional().register(about, {
    section: "Files and batches",
    text: "The folder for stored responses, uploaded files and batches; by default data in mlx-serve's cache folder.",
    metavar: "<folder>",
    values: "file",
  }),
  maxFileSize: size("1KiB", "16GiB").prefault("200MiB").register(about, {
    section: "Files and batches",
    text: "Maximum size of an uploaded file.",
    metavar: "<size>",
  }),
  maxFileStorage: size("1KiB", "16TiB").prefault("4GiB").register(about, {
    section: "Files and batches",
    text: "Maximum storage for files per key.",
    metavar: "<size>",
  }),
  maxFiles: whole(1, 1_000_000).prefault(1000).register(about, {
    section: "Files and batches",
    text: "Maximum number of files per key.",
    metavar: "<n>",
  }),
  maxBatches: whole(1, 10_000).prefault(16).register(about, {
    section: "Files and batches",
    text: "Maximum unfinished batches per key.",
    metavar: "<n>",
  }),

  temperature: number(0, 2)
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "Default temperature of requests; 0 is greedy.",
      metavar: "<x>",
      aliases: ["--temp"],
    }),
  topP: z
    .preprocess(numeric, z.number(shareWanted).gt(0, shareWanted).max(1, shareWanted))
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "Default top_p of requests.",
      metavar: "<x>",
    }),
  topK: whole(0, 1_000_000).optional().register(about, {
    section: "Sampling defaults",
    text: "Default top_k of requests; 0 disables it.",
    metavar: "<n>",
  }),
  minP: number(0, 1).optional().register(about, {
    section: "Sampling defaults",
    text: "Default min_p of requests.",
    metavar: "<x>",
  }),
  maxTokens: whole(1, 2 ** 24)
    .optional()
    .register(about, {
      section: "Sampling defaults",
      text: "Default max_tokens of requests.",
      metavar: "<tokens>",
      aliases: ["--predict", "--n-predict", "-n"],
    }),

  logLevel: oneOf(logLevels, { warning: "warn" })
    .prefault("info")
    .register(about, {
      section: "Logging",
      text: "Minimum log level; debug logs every step.",
      metavar: "<level>",
      sets: { "--verbose": "debug" },
      variables: ["MLX_SERVE_LOG"],
      values: logLevels,
    }),
  logFormat: oneOf(logFormats).prefault("auto").register(about, {
    section: "Logging",
    text: "Log format; auto is pretty on a terminal and JSON elsewhere.",
    metavar: "<format>",
    values: logFormats,
  }),
  logPrompts: onOff().prefault(false).register(about, {
    section: "Logging",
    text: "Log the text of prompts.",
  }),

  backend: oneOf(backends).optional().register(about, {
    section: "Machine",
    text: "The device to compute on; by default Metal on a Mac, otherwise the CPU.",
    metavar: "<name>",
    values: backends,
  }),
  threads: whole(1, 1024)
    .optional()
    .register(about, {
      section: "Machine",
      text: "Number of CPU threads; by default one per core.",
      metavar: "<n>",
      aliases: ["-t"],
    }),
  ranks: whole(1, 64).prefault(1).register(about, {
    section: "Machine",
    text: "Divide each model among this number of processes on this machine.",
    metavar: "<n>",
  }),
  hosts: text("the name of a file").optional().register(about, {
    section: "Machine",
    text: "Divide each model among the hosts of this file, in the format of mlx.launch; this machine is the first.",
    metavar: "<file>",
    values: "file",
  }),
  parallel: oneOf(parallels).prefault("auto").register(about, {
    section: "Machine",
    text: "How models are divided: each rank holds a part of every layer (tensor), or whole layers (pipeline); auto is tensor on one machine and pipeline on several.",
    metavar: "<way>",
    values: parallels,
  }),
  layers: layerRanges().optional().register(about, {
    section: "Machine",
    text: "With --parallel pipeline: the layers of each rank, such as 0-19,20-39; by default in proportion to their memory.",
    metavar: "<ranges>",
  }),
  rankPort: whole(1, 65_000).prefault(32_322).register(about, {
    section: "Machine",
    text: "With --hosts: the port of this server for ranks; ranks reach each other at the following ports.",
    metavar: "<port>",
  }),
  rankSecret: text("a secret of 16 characters or more", (value) => value.length >= 16)
    .optional()
    .register(about, {
      section: "Machine",
      text: "With --hosts: the secret shared by all ranks. The variable is safer than the flag.",
      metavar: "<secret>",
      isSecret: true,
    }),
});
export type Settings = z.infer<typeof Settings>;

/** A setting with all its names. */
export type Setting = About & {
  key: keyof Settings;
  flag: string;
  variable: string;
  /** Key in the settings file, where dashes may replace underscores. */
  name: string;
  /** Default value, as it would be written. */
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

/** Returns all flags of a setting. `sets`: the value that a flag without an argument sets. */
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

/** Returns the flag that turns a switch off. */
export function offFlag({ flag }: Pick<Setting, "flag">): string {
  return flag.replace("--", "--no-");
}
