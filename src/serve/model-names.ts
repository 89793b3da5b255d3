// Configured model names: `name` is an alias of the model given at start, and `pattern=model` maps all names that match
// the pattern to that model; * matches any characters.

export type ModelNames = {
  /** Names of the model that is given at start. */
  own: readonly string[];
  /** Returns the model of the first pattern that matches the name. */
  aliased(name: string): string | undefined;
};

/** Maximum length of a name to match, since a client's name may be as long as a body. */
const MAX_LENGTH = 256;

export function readModelNames(written: readonly string[]): ModelNames {
  const aliases = written.filter(isAlias).map((each) => {
    const [pattern = "", model = ""] = each.split("=");
    return { fits: patternOf(pattern), model };
  });
  return {
    own: written.filter((each) => !isAlias(each)),
    aliased(name) {
      if (name.length > MAX_LENGTH) return undefined;
      return aliases.find(({ fits }) => fits.test(name))?.model;
    },
  };
}

const isAlias = (written: string) => written.includes("=");

function patternOf(text: string): RegExp {
  const literal = (part: string) => part.replace(/[\\^$.|?+()[\]{}]/g, "\\$&");
  // Consecutive stars are merged, because a regex would backtrack through every split between them.
  return new RegExp(`^${text.split(/\*+/).map(literal).join(".*")}$`, "su");
}
