// Runs every command of the documentation, in the order of its document, except those listed below.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { pythonWithClients } from "../support/python-clients.ts";
import { DocumentShell } from "./document-shell.ts";
import { type Block, commandsOf, patternOf, readDocuments } from "./documents.ts";

/** Commands that are not run, by reason. */
const notRun: Readonly<Record<string, readonly string[]>> = {
  "it is what runs this test": ["npm test", "npm test -- test/kv"],
  "it would change files of the checkout": ["node_modules/.bin/biome check --write"],
  "test/scripts/build.test.ts runs it": [
    "npm run build",
    "npm run -s mlx-serve -- doctor --self-test --report ~/self-test.json",
  ],
  "it would reach servers that are not this test's": ["pkill -HUP -x mlx-serve"],
  "it changes the system": [
    "sudo cp scripts/packaging/mlx-serve.service /etc/systemd/system/",
    "sudo mlx-serve keys add alice --keys-file /etc/mlx-serve/keys.json",
    "echo MLX_SERVE_MODEL=/srv/models/my-model | sudo tee -a /etc/mlx-serve/environment",
    "sudo systemctl enable --now mlx-serve",
    "journalctl -u mlx-serve -o cat -f",
  ],
  "test/cli/models/first-model.test.ts runs it, on a terminal": ["mlx-serve"],
  "it pulls gigabytes: test/hub/popular-models.test.ts has the name": [
    'npm run -s mlx-serve -- run qwen3:4b "Why is the sky blue?"',
  ],
  "the same verb runs in docs/development.md, from the checkout": ["mlx-serve doctor"],
  "npm run -s agents runs it, with agents that it installs": [
    "npm run -s mlx-serve -- launch claude",
    'npm run -s mlx-serve -- launch codex -- exec "fix the tests"',
    'npm run -s mlx-serve -- launch opencode -- run "fix the tests"',
  ],
  "its program is not installed: it is large, or on no registry that tests install from": [
    "OPENAI_API_BASE=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none aider --model openai/default",
    "GOOSE_PROVIDER=openai GOOSE_MODEL=default OPENAI_HOST=http://127.0.0.1:8080 OPENAI_API_KEY=none goose session",
  ],
  "test/cli/service.test.ts runs it, with a service manager of its own": [
    "mlx-serve service install HuggingFaceTB/SmolLM2-135M-Instruct --port 8080",
    "mlx-serve service install mlx-community/Qwen3-4B-Instruct-2507-4bit",
    "mlx-serve service start",
    "mlx-serve service status",
    "mlx-serve service logs --follow",
    "mlx-serve service stop",
    "mlx-serve service uninstall",
  ],
  "test/distributed/serve.test.ts runs it": ["mlx-serve serve --ranks 2"],
  "it needs Docker": [
    "docker build -f scripts/packaging/Dockerfile -t mlx-serve .",
    "docker run -p 3000:8080 -e OPENAI_API_BASE_URL=http://host.docker.internal:8080/v1 -e OPENAI_API_KEY=none \\\n  ghcr.io/open-webui/open-webui:main",
    "docker run -p 8080:8080 -v mlx-serve:/cache -v ./keys.json:/keys.json:ro -v ./my-model:/model:ro -e MLX_SERVE_MODEL=/model mlx-serve",
  ],
};

/** Documents that show the answers of the real default model. */
const withAnswers = ["README.md", "docs/clients.md"];

/** Blocks without commands. */
const shown = ["json", "nginx", "output", "text", "toml", "ts", "yaml"];

const interpreters: Readonly<Record<string, () => string[]>> = {
  js: () => ["node", "--input-type=module", "-"],
  python: () => [pythonWithClients(), "-"],
};

/** A command or program, and the output that the document shows for it. */
type Step = {
  document: string;
  block: Block;
  command: string;
  output: string | undefined;
  reason: string | undefined;
};

const reasons = new Map(
  Object.entries(notRun).flatMap(([reason, commands]) =>
    commands.map((command) => [command, reason] as const),
  ),
);

const steps = readDocuments().flatMap(({ path, blocks }) =>
  blocks.flatMap((block, i): Step[] => {
    if (shown.includes(block.info)) return [];
    const next = blocks[i + 1];
    const output = next?.info === "output" ? next.text : undefined;
    const common = { document: path, block, output };
    if (block.info in interpreters) {
      return [{ ...common, command: `a program in ${block.info}`, reason: undefined }];
    }
    if (block.info !== "sh") throw new Error(`${path}: what is a block of "${block.info}"?`);
    return commandsOf(block).map((command) => {
      return { ...common, command, reason: reasons.get(command) };
    });
  }),
);

for (const [document, own] of Map.groupBy(steps, (step) => step.document)) {
  const run = own.filter(({ reason }) => reason === undefined);
  if (run.length === 0) continue;
  describe(document, () => {
    let shell: DocumentShell;
    beforeAll(async () => {
      // Where packages have to be installed, that takes longer than a test may.
      for (const { block } of run) interpreters[block.info]?.();
      shell = await DocumentShell.start({
        isTiny: !withAnswers.includes(document),
        hasNpm: document === "README.md",
      });
    }, 300_000);
    afterAll(() => shell.stop(), 30_000);

    for (const { block, command, output } of run) {
      test(command, async () => {
        const interpreter = interpreters[block.info]?.();
        const printed = interpreter
          ? await shell.interpret(interpreter, block.text)
          : await shell.run(command);
        if (output !== undefined) expect(printed).toMatch(patternOf(output));
      }, 60_000);
    }
  });
}

test("every command is run, or is listed with the reason why not", () => {
  const lines = steps.map(({ document, command, reason }) => {
    const how = reason === undefined ? "run" : `not run: ${reason}`;
    return `${document}: ${command.replace(/\s+/g, " ")}  [${how}]`;
  });
  console.log(lines.join("\n"));
  const listed = new Set(steps.map(({ command }) => command));
  expect([...reasons.keys()].filter((command) => !listed.has(command))).toEqual([]);
  expect(steps.filter(({ reason }) => reason === undefined).length).toBeGreaterThan(30);
});
