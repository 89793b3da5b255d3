// mlx-serve version
import { version as number } from "../../package.json";

export function version(): void {
  console.log(`mlx-serve ${number}`);
}
