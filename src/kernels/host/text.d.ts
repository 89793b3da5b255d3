// Kernel sources are imported as text.
declare module "*.c" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: that is how bun gives them
  export default text;
}

declare module "*.h" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: that is how bun gives them
  export default text;
}
