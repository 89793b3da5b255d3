// The names by which requests may ask for models, as the operator writes them: `name` is one for the model given
// at start, and `pattern=model` lets every name that fits the pattern mean that model; * stands for any characters.

export type ModelNames = {
  /** Of the model given at start. */
  own: readonly string[];
  /** The model that this name means by a pattern, the first that fits. */
  aliased(name: string): string | undefined;
};

/** What clients send can be as long as a body. */
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
  // Several stars in a row would try every way to share what they stand for.
  return new RegExp(`^${text.split(/\*+/).map(literal).join(".*")}$`, "su");
}
