class Heeler < Formula
  desc "Run fleets of coding agents and never lose their work"
  homepage "https://github.com/heeler/heeler"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

@ARCHIVES@

  def install
    # The two programs look for each other in one folder.
    libexec.install "heeler", "heeler-inside-static"
    bin.install_symlink libexec/"heeler"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/heeler"
    fish_completion.install "share/fish/vendor_completions.d/heeler.fish"
    zsh_completion.install "share/zsh/site-functions/_heeler"
    doc.install "README.md", "CHANGELOG.md", "heeler.spdx.json", "heeler.service"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/heeler --version")
    system bin/"heeler", "init"
    system bin/"heeler", "trigger", "greeter"
  end
end
