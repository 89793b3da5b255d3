// Checks whether a model will load on this machine and how much memory it takes, without its weights.

import type { EngineClient } from "../engine/client.ts";
import type { ModelPlan } from "../engine/protocol.ts";
import type { ModelSource } from "../hub/source.ts";
import { openTextModel, type TextModel, type TextModelOptions } from "../text/text-model.ts";

export type LoadCheck = {
  readonly loads: boolean;
  /** Reasons why the model cannot be loaded. */
  readonly reasons: readonly string[];
  /** Vocabulary size; absent if the tokenizer cannot be read. */
  readonly tokens?: number;
  /** Memory plan; absent if the headers of the weights cannot be read. */
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

/**
 * Opens the tokenizer and templates of a model before it is loaded. If that fails and the architecture is unsupported
 * too, throws the error about the architecture.
 */
export async function openLoadable(
  path: string,
  engine: Pick<EngineClient, "plan">,
  options: TextModelOptions = {},
): Promise<TextModel> {
  try {
    return openTextModel(path, options);
  } catch (error) {
    await engine.plan(path);
    throw error;
  }
}

function tokensOf(path: string, fail: (error: unknown) => undefined): number | undefined {
  try {
    return openTextModel(path).tokenizer.vocabSize;
  } catch (error) {
    return fail(error);
  }
}
