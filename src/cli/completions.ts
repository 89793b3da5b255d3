// mlx-serve completions: generates scripts for bash, zsh and fish from the table of verbs and the settings. They
// complete verbs, flags, values of flags, and the models that `mlx-serve ls` lists.
import { offFlag, settingList } from "../config/settings.ts";
import { UsageError } from "../config/usage-error.ts";
import type { Flag, Verb } from "./verbs.ts";

const writers = { bash: bashScript, zsh: zshScript, fish: fishScript };

export function completions(
  args: readonly string[],
  verbs: readonly Verb[],
  defaultVerb: string,
): void {
  const [shell = "", ...more] = args;
  if (more.length > 0 || !isShell(shell)) {
    throw new UsageError(`usage: mlx-serve completions ${Object.keys(writers).join("|")}`);
  }
  console.log(completionScript(shell, verbs, defaultVerb));
}

type Shell = keyof typeof writers;

function isShell(word: string): word is Shell {
  return Object.keys(writers).includes(word);
}

export function completionScript(
  shell: Shell,
  verbs: readonly Verb[],
  defaultVerb: string,
): string {
  return writers[shell](verbs.map(candidatesOf), defaultVerb);
}

/** Values that completion offers for a flag or argument; undefined if unknown. */
type Values = Flag["values"];

type Choice = {
  /** The spelling that completion offers; for a switch that is on by default, the flag that turns it off. */
  flag: string;
  spellings: string[];
  text: string;
  takesValue: boolean;
  values: Values;
};

/** The words that completion offers after a verb. */
type Candidates = { verb: string; summary: string; flags: Choice[]; values: Values };

const helpFlag: Flag = { flag: "--help", aliases: ["-h"], text: "Shows usage." };

function candidatesOf({ name, summary, flags = [], settings, values }: Verb): Candidates {
  const all = [...flags, ...(settings ? settingList : []), helpFlag];
  return { verb: name, summary, flags: all.map(choiceOf), values };
}

function choiceOf(flag: Flag): Choice {
  // For a switch that is on by default, only the flag that turns it off is useful.
  const isOn = !flag.metavar && flag.default === "true";
  const [text = ""] = flag.text.split(/[.;:](?: |$)/);
  return {
    flag: isOn ? offFlag(flag) : flag.flag,
    spellings: [flag.flag, ...(flag.aliases ?? [])],
    text: isOn ? `Do not: ${text}` : text,
    takesValue: flag.metavar !== undefined,
    values: flag.values,
  };
}

/** Shell command that extracts the models' names from `ls --json`, which prints one name per line. */
const modelNames = `sed -n 's/^ *"name": "\\(.*\\)",$/\\1/p'`;

function bashScript(verbs: readonly Candidates[], defaultVerb: string): string {
  const cases = caseLines(verbs, {
    flags: (flags) => `words='${flags.map(({ flag }) => flag).join(" ")}'`,
    values: (values) =>
      values === undefined
        ? "return 0"
        : `words='${typeof values === "string" ? `<${values}>` : values.join(" ")}'`,
  });
  return `# For bash: source <(mlx-serve completions bash)
_mlx_serve() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD-1]} verb=\${COMP_WORDS[1]}
  local words
  COMPREPLY=()
  # The = of --flag=value is a word of its own.
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=\${COMP_WORDS[COMP_CWORD-2]}; fi
  if [[ $verb == -* ]]; then verb=${defaultVerb}; elif (( COMP_CWORD == 1 )); then verb=; fi
  case "$verb $prev" in
${cases.after}
  *)
    case "$verb $cur" in
    ' '*) words='${verbs.map(({ verb }) => verb).join(" ")}' ;;
${cases.begun}
    esac ;;
  esac
  if [[ $words == '<model>' && $cur != [./~]* ]]; then
    words=$("$1" ls --json 2>/dev/null | ${modelNames})
  fi
  if [[ $words == '<'* ]]; then
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  else
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  fi
  return 0
}
complete -F _mlx_serve mlx-serve`;
}

function zshScript(verbs: readonly Candidates[], defaultVerb: string): string {
  const described = (name: string, text: string) => singleQuoted(`${name}:${text}`);
  const cases = caseLines(verbs, {
    flags: (flags) => {
      const items = flags.map(({ flag, text }) => described(flag, text));
      return `items=(${items.join(" ")}); _describe -o flag items`;
    },
    values: (values, text) => {
      if (values === undefined) return `_message ${singleQuoted(text)}`;
      if (typeof values === "object") return `compadd -- ${values.join(" ")}`;
      return values === "file" ? "_files" : "_mlx_serve_models";
    },
  });
  return `#compdef mlx-serve
# For zsh: source <(mlx-serve completions zsh), or a file _mlx_serve in a folder of $fpath
_mlx_serve_models() {
  local -a names
  names=(\${(f)"$($words[1] ls --json 2>/dev/null | ${modelNames})"})
  compadd -a names
  _files
}
_mlx_serve() {
  local cur=$words[CURRENT] prev=$words[CURRENT-1] verb=$words[2]
  local -a items
  if [[ $cur == --*=* ]]; then prev=\${cur%%=*} cur=\${cur#*=}; compset -P '*='; fi
  if [[ $verb == -* ]]; then verb=${defaultVerb}; elif (( CURRENT == 2 )); then verb=; fi
  case "$verb $prev" in
${cases.after}
  *)
    case "$verb $cur" in
    ' '*) items=(${verbs.map(({ verb, summary }) => described(verb, summary)).join(" ")})
      _describe verb items ;;
${cases.begun}
    esac ;;
  esac
}
if [[ $funcstack[1] == _mlx_serve ]]; then _mlx_serve; else compdef _mlx_serve mlx-serve; fi`;
}

type Actions = {
  flags: (flags: readonly Choice[]) => string;
  values: (values: Values, text: string) => string;
};

/** Returns the case branches that bash and zsh share: for values of flags, and for words after a verb. */
function caseLines(verbs: readonly Candidates[], { flags, values }: Actions) {
  const after = verbs.flatMap((candidates) =>
    candidates.flags
      .filter(({ takesValue }) => takesValue)
      .map((choice) => {
        const words = choice.spellings.map((spelling) => `'${candidates.verb} ${spelling}'`);
        return `  ${words.join(" | ")}) ${values(choice.values, choice.text)} ;;`;
      }),
  );
  const begun = verbs.flatMap((each) => [
    `    '${each.verb} -'*) ${flags(each.flags)} ;;`,
    `    '${each.verb} '*) ${values(each.values, each.summary)} ;;`,
  ]);
  return { after: after.join("\n"), begun: begun.join("\n") };
}

function fishScript(verbs: readonly Candidates[], defaultVerb: string): string {
  const others = verbs.filter(({ verb }) => verb !== defaultVerb).map(({ verb }) => verb);
  const lines = verbs.flatMap(({ verb, summary, flags, values }) => {
    const chosen = `__fish_seen_subcommand_from ${verb}`;
    const within =
      verb === defaultVerb ? `not __fish_seen_subcommand_from ${others.join(" ")}` : chosen;
    return [
      fishLine("__fish_use_subcommand", `-a ${verb} -d ${singleQuoted(summary)}`),
      ...flags.map((choice) => {
        const rest = choice.takesValue ? `-r ${fishValues(choice.values)}` : "";
        return fishLine(
          within,
          `-l ${choice.flag.slice(2)} ${rest} -d ${singleQuoted(choice.text)}`,
        );
      }),
      ...(values === undefined ? [] : [fishLine(chosen, fishValues(values))]),
    ];
  });
  return `# For fish: mlx-serve completions fish | source
function __mlx_serve_models
  mlx-serve ls --json 2>/dev/null | ${modelNames}
end
complete -c mlx-serve -f
${lines.join("\n")}`;
}

function fishLine(condition: string, rest: string): string {
  return `complete -c mlx-serve -n '${condition}' ${rest}`.replace(/ {2,}/g, " ");
}

function fishValues(values: Values): string {
  if (values === undefined) return "-f";
  if (typeof values === "object") return `-f -a '${values.join(" ")}'`;
  return values === "file" ? "-F" : "-F -a '(__mlx_serve_models)'";
}

/** Quotes a text for all three shells; a single quote in it is closed, double-quoted, and reopened. */
function singleQuoted(text: string): string {
  return `'${text.replaceAll("'", `'"'"'`)}'`;
}
