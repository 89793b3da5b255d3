// Parses the name of a repo: `org/name`, optionally with `@revision` and `:file`. Every part is validated before it
// becomes part of a path, so that no name escapes the cache.

export type RepoName = {
  readonly id: string;
  /** A branch, a tag or a commit. */
  readonly revision?: string;
  /** A GGUF file, by name or by a quantization such as Q4_K_M. */
  readonly file?: string;
};

const COMMIT = /^[0-9a-f]{40}$/;

/** Undefined if the text is not a valid name. */
export function parseRepoName(text: string): RepoName | undefined {
  const [, id = "", revision, file] = /^([^@:]+)(?:@([^@:]+))?(?::([^@:]+))?$/.exec(text) ?? [];
  if (!isRepoId(id)) return undefined;
  if (revision !== undefined && !isRelativePath(revision)) return undefined;
  if (file !== undefined && !isRelativePath(file)) return undefined;
  return { id, ...(revision !== undefined && { revision }), ...(file !== undefined && { file }) };
}

/** The hub's rule for ids. */
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

/** Whether the path stays below the folder it is joined to, on every system. */
export function isRelativePath(path: string): boolean {
  return (
    path.length <= 1024 &&
    path.split("/").every((part) => part !== "" && part !== "." && part !== "..") &&
    // biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern matches them
    !/[\\:\x00-\x1f\x7f]/.test(path)
  );
}
