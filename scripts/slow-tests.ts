// Which tests take the gate's time, from the report in JUnit's format that `bun test` writes.

/** Seconds that a test may take, unless `reasons` has it. */
export const MOST_SECONDS = 15;

/** Why a test takes longer, by its file and name. */
const reasons: Readonly<Record<string, string>> = {
  "test/self-test/device-checks.test.ts: on an NVIDIA GPU":
    "compiles and emulates every CUDA kernel",
  "test/worker/leaks.test.ts: 500 requests in a row, and 10,000 tokens of one, leave handles and memory as they were":
    "a leak shows only after many requests",
  "test/docs/examples.test.ts: every example prints what it says": "starts ten programs",
  "test/grammar/smollm2.test.ts: 12 schemas at temperature 1 give valid documents, and free rows do not notice":
    "decodes hundreds of tokens with the default model",
};

type Timed = { name: string; seconds: number };

/** The ten slowest files and tests of a report, and how many tests took too long without a reason. */
export function slowest(report: string): { lines: string[]; unexplained: number } {
  const elements = [...report.matchAll(/<(testsuite|testcase) ([^>]*)>/g)].map(
    ([, element, attributes = ""]) => ({ element, ...attributesOf(attributes) }),
  );
  const files = elements.filter(
    ({ element, name, file }) => element === "testsuite" && name === file,
  );
  const tests = elements
    .filter(({ element }) => element === "testcase")
    .map(({ name, file, seconds }) => ({ name: `${file}: ${name}`, seconds }));
  const isUnexplained = ({ name, seconds }: Timed) => seconds > MOST_SECONDS && !reasons[name];
  const line = ({ name, seconds }: Timed) => `${seconds.toFixed(1).padStart(7)} s  ${name}`;
  const withRemark = (each: Timed) => {
    const remark = isUnexplained(each) ? TOO_SLOW : reasons[each.name];
    return remark ? `${line(each)} (${remark})` : line(each);
  };
  return {
    lines: [
      "slowest files:",
      ...ten(files).map(line),
      "slowest tests:",
      ...ten(tests).map(withRemark),
    ],
    unexplained: tests.filter(isUnexplained).length,
  };
}

const TOO_SLOW = "too slow: make it faster, or say why in scripts/slow-tests.ts";

const ten = (all: readonly Timed[]) => all.toSorted((a, b) => b.seconds - a.seconds).slice(0, 10);

function attributesOf(text: string) {
  const found = [...text.matchAll(/(\w+)="([^"]*)"/g)].map(([, name, value]) => [name, value]);
  const { name = "", file = "", time } = Object.fromEntries(found);
  return { name: unescaped(name), file, seconds: Number(time) };
}

const characters: Readonly<Record<string, string>> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
};

function unescaped(text: string): string {
  return text.replace(/&(\w+);/g, (entity, name) => characters[name] ?? entity);
}
