// All checks of a device that do not need a model.
import type { Device } from "../device/device.ts";
import { Scope } from "../mlx/scope.ts";
import { attentionChecks } from "./attention-checks.ts";
import { type DeviceCheck, worstOf } from "./check.ts";
import { deviceOperationChecks } from "./device-operation-checks.ts";
import { expertChecks } from "./expert-checks.ts";
import { latentChecks } from "./latent-checks.ts";
import { groupOf, type Outcome } from "./lines.ts";
import { operationChecks } from "./operation-checks.ts";
import { productChecks } from "./product-checks.ts";
import { recurrenceChecks } from "./recurrence-checks.ts";

export function deviceChecks(device: Device): DeviceCheck[] {
  const checks = [
    ...operationChecks(),
    ...deviceOperationChecks(),
    ...productChecks(device),
    ...expertChecks(device),
    ...attentionChecks(device),
    ...latentChecks(),
    ...recurrenceChecks(),
  ];
  return [...Map.groupBy(checks, groupOf).values()].flat();
}

export function outcomeOf(check: DeviceCheck, device: Device): Outcome {
  using _ = new Scope();
  return worstOf(check.run(device));
}
