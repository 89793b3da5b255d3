// The structured log: one JSON object a line, to standard error. MLX_SERVE_LOG=debug turns it on.

export const debugging = process.env.MLX_SERVE_LOG === "debug";

export function logDebug(event: string, fields: object): void {
  if (!debugging) return;
  console.error(
    JSON.stringify({ time: new Date().toISOString(), level: "debug", event, ...fields }),
  );
}
