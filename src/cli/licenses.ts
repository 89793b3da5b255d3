// The licenses of everything inside that is not ours. An executable carries their text: scripts/build.ts puts
// another module in the place of this one. In a checkout it is collected from what is installed.
import { existsSync } from "node:fs";
import { libraryIn, nativeDirectory } from "../../ffi/native.ts";

export async function licenses(): Promise<string> {
  const { thirdPartyLicenses } = await import("../../scripts/build/licenses.ts");
  const { carriedFiles } = await import("../../scripts/build/libraries.ts");
  const directory = nativeDirectory();
  const library = libraryIn(directory);
  const files = existsSync(library) ? carriedFiles(directory, library) : [];
  return thirdPartyLicenses(directory, files);
}
