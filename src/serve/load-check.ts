// Whether a model will load on this machine, and in what memory: as the engine plans it, without its weights.

import type { EngineClient } from "../engine/client.ts";
import type { ModelPlan } from "../engine/protocol.ts";
import type { ModelSource } from "../hub/source.ts";
import { openTextModel } from "../text/text-model.ts";

export type LoadCheck = {
  readonly loads: boolean;
  /** Why not. */
  readonly reasons: readonly string[];
  /** What the tokenizer has, if it can be read. */
  readonly tokens?: number;
  /** If the weights can be read. */
  readonly plan?: ModelPlan;
};

export async function checkLoad(
  { path }: ModelSource,
  engine: Pick<EngineClient, "plan">,
): Promise<LoadCheck> {
  const reasons: string[] = [];
  const fail = (error: unknown) => {
    reasons.push(error instanceof Error ? error.message : String(error));
    return undefined;
  };
  const plan = await engine.plan(path).catch(fail);
  if (plan?.refusal !== undefined) reasons.push(plan.refusal);
  const tokens = tokensOf(path, fail);
  return {
    loads: reasons.length === 0,
    reasons,
    ...(tokens !== undefined && { tokens }),
    ...(plan && { plan }),
  };
}

function tokensOf(path: string, fail: (error: unknown) => undefined): number | undefined {
  try {
    return openTextModel(path).tokenizer.vocabSize;
  } catch (error) {
    return fail(error);
  }
}
