// The licenses of all third-party software in mlx-serve. In a checkout, the text is collected from the installed
// packages; for the executable, scripts/build.ts replaces this module by one with the text.
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
