// The Homebrew formula of a release.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { description, license, version } from "../../package.json";

/** The formula for the archives in `folder`, at their URLs in the GitHub release. */
export function formula(repository: string, folder: string): string {
  const page = `https://github.com/${repository}`;
  const archive = (system: string) => {
    const name = `mlx-serve-${system}.tar.gz`;
    const content = readFileSync(join(folder, name));
    const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    return `url "${page}/releases/download/v${version}/${name}"
      sha256 "${sha256}"`;
  };
  return `class MlxServe < Formula
  desc "${description}"
  homepage "${page}"
  version "${version}"
  license "${license}"

  on_macos do
    on_arm do
      ${archive("darwin-arm64")}
    end
  end
  on_linux do
    on_intel do
      ${archive("linux-x64")}
    end
    on_arm do
      ${archive("linux-arm64")}
    end
  end

  def install
    bin.install "mlx-serve"
  end

  service do
    run [opt_bin/"mlx-serve", "serve"]
    keep_alive successful_exit: false
    log_path var/"log/mlx-serve.log"
    error_log_path var/"log/mlx-serve.log"
  end

  def caveats
    <<~EOS
      The service serves the model of ~/.config/mlx-serve/config.toml:
        mlx-serve pull mlx-community/Qwen3-4B-Instruct-2507-4bit
        mkdir -p ~/.config/mlx-serve
        echo 'model = "mlx-community/Qwen3-4B-Instruct-2507-4bit"' >> ~/.config/mlx-serve/config.toml
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/mlx-serve version")
  end
end
`;
}
