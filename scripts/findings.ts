// Collects and prints the findings of scripts that check how programs work together, one line each.

export class Findings {
  failures = 0;

  add(isRight: boolean, what: string, seen: unknown): void {
    if (!isRight) this.failures += 1;
    console.log(`${isRight ? "ok  " : "FAIL"} ${what}: ${JSON.stringify(seen)}`);
  }
}

const PATIENCE_MS = 30_000;

/** Awaits the promise, up to a time limit. */
export function within<T>(what: string, wanted: Promise<T>): Promise<T> {
  const tooLong = Bun.sleep(PATIENCE_MS).then(() => {
    throw new Error(`timed out waiting until ${what}`);
  });
  return Promise.race([wanted, tooLong]);
}

export async function until(what: string, isSo: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = Date.now() + PATIENCE_MS;
  const isSoNow = async () => {
    try {
      return await isSo();
    } catch {
      return false;
    }
  };
  while (!(await isSoNow())) {
    if (Date.now() > deadline) throw new Error(`timed out waiting until ${what}`);
    await Bun.sleep(50);
  }
}
