// What a user may write for a repo of the hub: `org/name`, then `@revision` and `:file`. Every part
// is checked before it becomes part of a path, so that no name leads out of the cache.

export type RepoName = {
  readonly id: string;
  /** A branch, a tag or a commit. */
  readonly revision?: string;
  /** Which GGUF file: its name, or a quantization such as Q4_K_M. */
  readonly file?: string;
};

const COMMIT = /^[0-9a-f]{40}$/;

/** Undefined where the text cannot be the name of a repo. */
export function parseRepoName(text: string): RepoName | undefined {
  const [, id = "", revision, file] = /^([^@:]+)(?:@([^@:]+))?(?::([^@:]+))?$/.exec(text) ?? [];
  if (!isRepoId(id)) return undefined;
  if (revision !== undefined && !isRelativePath(revision)) return undefined;
  if (file !== undefined && !isRelativePath(file)) return undefined;
  return {
    id,
    ...(revision !== undefined && { revision }),
    ...(file !== undefined && { file }),
  };
}

/** The hub's own rule. */
export function isRepoId(id: string): boolean {
  const parts = id.split("/");
  return (
    parts.length <= 2 &&
    parts.every((part) => part.length <= 96 && /^\w(?:[\w.-]*\w)?$/.test(part)) &&
    !/--|\.\.|\.git$/.test(id)
  );
}

export function isCommit(text: string): boolean {
  return COMMIT.test(text);
}

/** A path below the folder it is joined to, on every system: from a user, or from a hub. */
export function isRelativePath(path: string): boolean {
  return (
    path.length <= 1024 &&
    path.split("/").every((part) => part !== "" && part !== "." && part !== "..") &&
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    !/[\\:\x00-\x1f\x7f]/.test(path)
  );
}
