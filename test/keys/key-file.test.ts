import { beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import {
  changeKeyFile,
  defaultKeyFile,
  hashOf,
  KeyFileError,
  keyFileWarning,
  newKey,
  readKeyFile,
} from "../../src/keys/key-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(root, "config-"));
  path = join(folder, "keys.json");
});

const secret = hashOf("secret").toString("hex");
const alice = {
  name: "alice",
  sha256: secret,
  tier: "HIGH",
  limits: { tokens_per_minute: 1000 },
  created: "2025-01-01T00:00:00.000Z",
} as const;

const modeOf = (file: string) => statSync(file).mode & 0o777;

/** What is said of a file with this text. */
function refusal(text: string): string {
  writeFileSync(path, text);
  try {
    readKeyFile(path);
  } catch (error) {
    expect(error).toBeInstanceOf(KeyFileError);
    const { message } = error as Error;
    expect(message).toStartWith(`${path}: `);
    expect(message).not.toContain("\n");
    for (const hidden of [secret, secret.toUpperCase(), "sk-mlx-"]) {
      expect(message).not.toContain(hidden);
    }
    return message.slice(path.length + 2);
  }
  throw new Error(`${text} was read`);
}

const refusalOf = (...keys: unknown[]) => refusal(JSON.stringify({ keys }));

describe("a keys file", () => {
  test("is read as it was written", () => {
    changeKeyFile(path, () => [alice]);
    expect(readKeyFile(path)).toEqual({ keys: [alice] });
    expect(JSON.parse(readFileSync(path, "utf8"))).toEqual({ keys: [alice] });
  });

  test("that is not there is no error", () => {
    expect(readKeyFile(path)).toBeUndefined();
    expect(keyFileWarning(path)).toBeUndefined();
  });

  test("may leave limits out, and write hashes in capitals", () => {
    const { limits: _, ...short } = alice;
    writeFileSync(path, JSON.stringify({ keys: [{ ...short, sha256: secret.toUpperCase() }] }));
    expect(readKeyFile(path)).toEqual({ keys: [{ ...alice, limits: {} }] });
  });

  test("that is wrong is refused in one line that names the entry and no secret", () => {
    const key = newKey();
    expect(refusal(`{"keys": [${secret}`)).toBe("not valid JSON");
    expect(refusal("")).toBe("not valid JSON");
    expect(refusal("[]")).toContain("expected object");
    expect(refusal("{}")).toContain("expected array");
    expect(refusal(JSON.stringify({ keys: { [secret]: "alice" } }))).toContain("expected array");
    expect(refusalOf(alice, secret)).toStartWith("entry 2: ");
    expect(refusalOf(null)).toStartWith("entry 1: ");
    expect(refusalOf({ ...alice, tier: "high" })).toStartWith("entry 1 (alice): tier: ");
    expect(refusalOf({ ...alice, tier: secret })).toStartWith("entry 1 (alice): tier: ");
    expect(refusalOf({ ...alice, sha256: key })).toBe(
      "entry 1 (alice): sha256: expected 64 hexadecimal digits",
    );
    expect(refusalOf({ ...alice, sha256: `${secret}0` })).toStartWith("entry 1 (alice): sha256: ");
    expect(refusalOf({ ...alice, key })).toBe("entry 1 (alice): there is no field key");
    expect(refusalOf({ ...alice, [key]: 1 })).toBe("entry 1 (alice): there is an unknown field");
    expect(refusalOf({ ...alice, limits: { requests: 1 } })).toBe(
      "entry 1 (alice): limits: there is no field requests",
    );
    for (const count of [0, -1, 1.5, "5", null]) {
      expect(refusalOf({ ...alice, limits: { concurrent: count } })).toStartWith(
        "entry 1 (alice): limits: concurrent: ",
      );
    }
    expect(refusalOf({ ...alice, created: "today" })).toStartWith("entry 1 (alice): created: ");
    for (const name of [key, secret, "", "a b", "a\nb", "../x", 5]) {
      expect(refusalOf({ ...alice, name })).toStartWith("entry 1: name: ");
    }
    for (const name of ["anonymous", "local", "api-key-1"]) {
      expect(refusalOf({ ...alice, name })).toEndWith("this name is reserved");
    }
    expect(refusalOf(alice, { ...alice, sha256: hashOf("other").toString("hex") })).toBe(
      "entry 2 (alice): name: the name is taken",
    );
    expect(refusalOf(alice, { ...alice, name: "bob", sha256: secret.toUpperCase() })).toBe(
      "entry 2 (bob): sha256: another entry has the same key",
    );
  });

  test("that cannot be read says so", () => {
    expect(() => readKeyFile(folder)).toThrow(`${folder}: cannot be read (EISDIR)`);
  });
});

describe("a change", () => {
  test("makes the folder, and a file for its owner alone", () => {
    const below = join(folder, "new", "mlx-serve", "keys.json");
    changeKeyFile(below, () => [alice]);
    expect(modeOf(below)).toBe(0o600);
    expect(modeOf(join(folder, "new"))).toBe(0o700);
    expect(keyFileWarning(below)).toBeUndefined();
  });

  test("takes the file back from others, of whom there is a warning until then", () => {
    changeKeyFile(path, () => []);
    for (const mode of [0o640, 0o604, 0o622]) {
      chmodSync(path, mode);
      expect(keyFileWarning(path)).toContain(`chmod 600 ${path}`);
    }
    changeKeyFile(path, () => [alice]);
    expect(modeOf(path)).toBe(0o600);
  });

  test("that throws, or finds a wrong file, leaves everything as it was", () => {
    changeKeyFile(path, () => [alice]);
    const fail = () => {
      throw new Error("no");
    };
    expect(() => changeKeyFile(path, fail)).toThrow("no");
    expect(readKeyFile(path)).toEqual({ keys: [alice] });
    changeKeyFile(path, (keys) => keys);
    writeFileSync(path, "{");
    expect(() => changeKeyFile(path, () => [])).toThrow(`${path}: not valid JSON`);
    expect(readFileSync(path, "utf8")).toBe("{");
    expect(readdirSync(folder).sort()).toEqual(["keys.json", "keys.json.lock"]);
  });

  test("that cannot be finished leaves nothing behind", () => {
    const blockPath = () => {
      mkdirSync(path);
      return [];
    };
    expect(() => changeKeyFile(path, blockPath)).toThrow(`${path}: cannot be written (`);
    expect(readdirSync(folder).sort()).toEqual(["keys.json", "keys.json.lock"]);
  });

  test("where nothing can be written is one line", () => {
    writeFileSync(path, "");
    const below = join(path, "keys.json");
    expect(() => changeKeyFile(below, () => [])).toThrow(`${below}: cannot be written (`);
  });

  test("follows a link", () => {
    const link = join(folder, "link.json");
    changeKeyFile(path, () => []);
    symlinkSync(path, link);
    changeKeyFile(link, () => [alice]);
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(readKeyFile(path)).toEqual({ keys: [alice] });
  });

  test("loses nothing to others at the same time", async () => {
    const script = `
      import { changeKeyFile, hashOf } from "${join(import.meta.dir, "../../src/keys/key-file.ts")}";
      for (let i = 0; i < 10; i++) {
        const name = process.argv[1] + i;
        changeKeyFile("${path}", (keys) => [...keys, {
          name, sha256: hashOf(name).toString("hex"), tier: "LOW", limits: {}, created: new Date().toISOString(),
        }]);
      }`;
    const children = ["a", "b", "c"].map((name) =>
      Bun.spawn([process.execPath, "-e", script, name], { stderr: "inherit" }),
    );
    expect(await Promise.all(children.map(({ exited }) => exited))).toEqual([0, 0, 0]);
    expect(readKeyFile(path)?.keys.length).toBe(30);
  });
});

test("the file stands in the user's folder of settings", () => {
  expect(defaultKeyFile({ HOME: "/home/u" })).toBe("/home/u/.config/mlx-serve/keys.json");
  expect(defaultKeyFile({ HOME: "/home/u", XDG_CONFIG_HOME: "/etc/u" })).toBe(
    "/etc/u/mlx-serve/keys.json",
  );
});

test("a new key is 32 random bytes", () => {
  const keys = Array.from({ length: 100 }, newKey);
  for (const key of keys) expect(key).toMatch(/^sk-mlx-[\w-]{43}$/);
  expect(new Set(keys).size).toBe(100);
});
