// All that is checked of a device, without models.
import type { Device } from "../device/device.ts";
import { Scope } from "../mlx/scope.ts";
import { attentionChecks } from "./attention-checks.ts";
import { type DeviceCheck, isClose } from "./check.ts";
import { latentChecks } from "./latent-checks.ts";
import { groupOf, type Outcome } from "./lines.ts";
import { operationChecks } from "./operation-checks.ts";
import { productChecks } from "./product-checks.ts";
import { recurrenceChecks } from "./recurrence-checks.ts";

export function deviceChecks(device: Device): DeviceCheck[] {
  const checks = [
    ...operationChecks(),
    ...productChecks(device),
    ...attentionChecks(device),
    ...latentChecks(),
    ...recurrenceChecks(),
  ];
  return [...Map.groupBy(checks, groupOf).values()].flat();
}

/** Of its findings the worst. */
export function outcomeOf(check: DeviceCheck, device: Device): Outcome {
  using _ = new Scope();
  const findings = check.run(device).toSorted((a, b) => ratio(b) - ratio(a));
  const finding = findings.find((each) => !isClose(each)) ?? findings[0];
  if (!finding || isClose(finding)) return { finding };
  const { what, worst, most } = finding;
  const problem = `${what}: off by ${worst.toPrecision(3)}, where ${most.toPrecision(1)} is allowed`;
  return { finding, problem };
}

const ratio = ({ worst, most }: { worst: number; most: number }) => worst / most;
