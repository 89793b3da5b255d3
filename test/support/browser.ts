// A real browser without system packages: Chromium from npm, unpacked into the temporary folder by its first user.
import bundled from "@sparticuz/chromium";
import { type Browser, chromium } from "playwright-core";

/** The package has Chromium for this system alone; elsewhere an installed one can be named. */
const ownChromium = process.env.CHROMIUM;

export const hasBrowser =
  ownChromium !== undefined || (process.platform === "linux" && process.arch === "x64");

export async function openBrowser(): Promise<Browser> {
  const executablePath = ownChromium ?? (await bundled.executablePath());
  // Not the package's own arguments: they switch off what keeps origins apart.
  return await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
}
