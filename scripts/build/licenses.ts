// Collects the licenses of third-party code in an executable: bundled npm packages, Bun, and the native libraries.
// Texts come from the packages and wheels (set-up keeps them next to the libraries), or else from the folder
// `licenses` here.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { MLX_VERSION, mlxC } from "../../ffi/pins.ts";
import { version } from "../../package.json";
import { consoleEntrypoint } from "../../src/http/owner/console-files.ts";
import { entrypoints } from "./entrypoints.ts";

const root = join(import.meta.dir, "..", "..");
const here = join(import.meta.dir, "licenses");

export type Notice = { name: string; text: string };

/** A component without a license file. `texts`: files of set-up, of the folder here, or of the repository. */
type Component = { name: string; copyright?: string; texts: readonly string[] };

const APACHE = "LICENSE";

const bun: readonly Component[] = [
  { name: `Bun ${Bun.version}`, texts: ["bun.txt", "mit.txt"] },
  { name: "JavaScriptCore, WebKit and tinycc, in Bun", texts: ["lgpl-2.1.txt"] },
  { name: "simdutf, highway, uSockets and uWebSockets, in Bun", texts: [APACHE] },
];

/** npm packages without a license file, or with third-party code inside. */
const packageComponents: Readonly<Record<string, readonly Component[]>> = {
  "@mlc-ai/web-xgrammar": [
    {
      name: "XGrammar, in @mlc-ai/web-xgrammar",
      copyright: "Copyright (c) 2024 by XGrammar Contributors",
      texts: [APACHE],
    },
    {
      name: "picojson, in @mlc-ai/web-xgrammar",
      copyright:
        "Copyright 2009-2010 Cybozu Labs, Inc.\nCopyright 2011-2014 Kazuho Oku\nAll rights reserved.",
      texts: ["bsd-2-clause.txt"],
    },
  ],
};

/** Components of the files in an executable. */
const nativeComponents: readonly { files: RegExp; components: readonly Component[] }[] = [
  {
    files: /\/libmlxc\.(so|dylib)$/,
    components: [{ name: `mlx-c (${mlxC.package} ${mlxC.version})`, texts: ["mlx-c.txt"] }],
  },
  {
    files: /\/(libmlx\.(so|dylib)|libjaccl\.dylib|mlx\.metallib)$/,
    components: [
      { name: `MLX ${MLX_VERSION}`, texts: ["mlx.txt"] },
      { name: "pocketfft, in MLX", texts: ["pocketfft.txt"] },
      {
        name: "{fmt}, in MLX",
        copyright: "Copyright (c) 2012 - present, Victor Zverovich and {fmt} contributors",
        texts: ["mit.txt"],
      },
      {
        name: "JSON for Modern C++, in MLX",
        copyright: "Copyright (c) 2013-2023 Niels Lohmann",
        texts: ["mit.txt"],
      },
      {
        name: "gguflib, in MLX",
        copyright: "Copyright (C) 2024 Salvatore Sanfilippo",
        texts: ["mit.txt"],
      },
    ],
  },
  {
    files: /\/mlx\.metallib$/,
    components: [{ name: "metal-cpp, in MLX", texts: ["metal-cpp.txt"] }],
  },
  {
    files: /\/libscipy_openblas\.so$/,
    components: [{ name: "OpenBLAS, with LAPACK and libgfortran", texts: ["openblas.txt"] }],
  },
  {
    files: /\.libs\/lib(blas|lapack|gfortran)-/,
    components: [
      { name: "the reference BLAS and LAPACK, and libgfortran", texts: ["openblas.txt"] },
    ],
  },
  {
    files: /\.libs\/libquadmath-/,
    components: [{ name: "libquadmath", texts: ["lgpl-2.1.txt"] }],
  },
  {
    files: /\/include\/(cute|cutlass)\//,
    components: [{ name: "CUTLASS", texts: ["cutlass.txt"] }],
  },
  // Only MLX for CUDA includes these headers.
  {
    files: /\/include\/cccl\//,
    components: [
      { name: "libcu++ (CCCL)", texts: [APACHE, "llvm-exception.txt"] },
      { name: "NVTX, in MLX", texts: [APACHE, "llvm-exception.txt"] },
      {
        name: "cudnn-frontend, in MLX",
        copyright: "Copyright (c) 2020-2025 NVIDIA CORPORATION & AFFILIATES. All rights reserved.",
        texts: ["mit.txt"],
      },
    ],
  },
];

/** The text of all licenses. `files`: the embedded files of the library folder `directory`. */
export async function thirdPartyLicenses(
  directory: string,
  files: readonly string[],
): Promise<string> {
  const packages = await bundledPackages();
  return format([
    ...packages.flatMap(packageNotices),
    ...nativeNotices(directory, files),
    ...bun.map((component) => componentNotice(component, directory)),
  ]);
}

/** The folders of the bundled npm packages. */
export async function bundledPackages(): Promise<string[]> {
  const inputsOf = async (files: string[], target: "bun" | "browser") => {
    const { metafile } = await Bun.build({ entrypoints: files, target, metafile: true });
    return Object.keys(metafile!.inputs);
  };
  const inputs = [
    ...(await inputsOf(entrypoints, "bun")),
    ...(await inputsOf([consoleEntrypoint], "browser")),
  ];
  const folders = inputs.flatMap((path) => {
    return /^.*\bnode_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? [];
  });
  return [...new Set(folders)].sort().map((folder) => join(process.cwd(), folder));
}

/** Throws if a package has no license. */
export function packageNotices(folder: string): Notice[] {
  const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const files = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file));
  const texts = files.sort().map((file) => readFileSync(join(folder, file), "utf8").trim());
  const text = texts.filter(Boolean).join("\n\n");
  const others = new Map(Object.entries(packageComponents)).get(name) ?? [];
  if (!text && others.length === 0) throw new Error(`${name} ${version} has no license in it`);
  const own = text ? [{ name: `${name} ${version}`, text }] : [];
  return [...own, ...others.map((component) => componentNotice(component))];
}

/** Throws if the components of a file are unknown. */
export function nativeNotices(directory: string, files: readonly string[]): Notice[] {
  const found = new Set<Component>();
  for (const file of files) {
    const inside = nativeComponents.filter((entry) => entry.files.test(file));
    if (inside.length === 0) throw new Error(`no license is known for ${file}`);
    for (const { components } of inside) for (const component of components) found.add(component);
  }
  return [...found].map((component) => componentNotice(component, directory));
}

function componentNotice({ name, copyright, texts }: Component, directory?: string): Notice {
  const read = texts.map((file) => {
    const folders = [...(directory ? [join(directory, "licenses")] : []), here, root];
    const path = folders.map((folder) => join(folder, file)).find(existsSync);
    const text = path && readFileSync(path, "utf8").trim();
    if (!text) throw new Error(`${name} has no license: ${file} is missing`);
    return text;
  });
  return { name, text: [copyright ?? [], ...read].flat().join("\n\n") };
}

/** Each text once, with the names of all its components. */
export function format(notices: readonly Notice[]): string {
  const normal = notices.map(({ name, text }) => ({ name, text: text.replaceAll("\r\n", "\n") }));
  const groups = Map.groupBy(normal, ({ text }) => text);
  const line = "=".repeat(80);
  const sections = Array.from(groups, ([text, of]) => {
    const names = [...new Set(of.map(({ name }) => name))].sort();
    return `${line}\n${names.join("\n")}\n${line}\n\n${text}\n`;
  });
  return [`mlx-serve ${version} contains this software:\n`, ...sections.sort()].join("\n");
}
