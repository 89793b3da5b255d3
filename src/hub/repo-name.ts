// Parses the name of a repo: `org/name`, optionally with `@revision` and `:file`. Every part is validated before it
// becomes part of a path, so that no name escapes the cache.

export type RepoName = {
  readonly id: string;
  /** Branch, tag or commit. */
  readonly revision?: string;
  /** GGUF file, by name or by quantization, such as Q4_K_M. */
  readonly file?: string;
};

const COMMIT = /^[0-9a-f]{40}$/;

/** Parses a repo name; returns undefined if the text is not valid. */
export function parseRepoName(text: string): RepoName | undefined {
  const [, id = "", revision, file] = /^([^@:]+)(?:@([^@:]+))?(?::([^@:]+))?$/.exec(text) ?? [];
  if (!isRepoId(id)) return undefined;
  if (revision !== undefined && !isRelativePath(revision)) return undefined;
  if (file !== undefined && !isRelativePath(file)) return undefined;
  return { id, ...(revision !== undefined && { revision }), ...(file !== undefined && { file }) };
}

/** Returns whether the id is valid by the hub's rules. */
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

/** Returns whether the path stays inside a folder that it is joined to, on every operating system. */
export function isRelativePath(path: string): boolean {
  return (
    path.length <= 1024 &&
    path.split("/").every((part) => part !== "" && part !== "." && part !== "..") &&
    // biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern matches them
    !/[\\:\x00-\x1f\x7f]/.test(path)
  );
}
