// The coding agents that `launch` starts, one row each: environment variables and arguments that point the agent at a
// server, without changing any of the user's files.

/** The server, as an agent's configuration needs it. */
export type AgentServer = {
  url: string;
  /** API key; a placeholder if the server needs none. */
  key: string;
  model: string;
  /** Context length of the model; undefined if unknown. */
  maxTokens: number | undefined;
};

export type Agent = {
  name: string;
  /** Name of the agent's npm package. */
  from: string;
  /** Returns environment variables to set; variables with an undefined value are removed. */
  env(server: AgentServer): Readonly<Record<string, string | undefined>>;
  /** Returns arguments, which are inserted before the user's. */
  args(server: AgentServer): readonly string[];
};

/** Environment variable that passes the API key: other users of the machine could see it in the arguments. */
const KEY_VARIABLE = "LAUNCH_API_KEY";
/** Name of the server in an agent's configuration. */
const PROVIDER = "mlx-serve";
/** Maximum tokens of an answer, which opencode reserves in the context. */
const MAX_ANSWER = 8192;

export const agents: readonly Agent[] = [
  {
    name: "claude",
    from: "@anthropic-ai/claude-code",
    env: ({ url, key, model, maxTokens }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_AUTH_TOKEN: key,
      // Claude Code also names models for background work and subagents; all these variables get the server's model.
      ANTHROPIC_MODEL: model,
      ANTHROPIC_SMALL_FAST_MODEL: model,
      ANTHROPIC_DEFAULT_FABLE_MODEL: model,
      ANTHROPIC_DEFAULT_OPUS_MODEL: model,
      ANTHROPIC_DEFAULT_SONNET_MODEL: model,
      ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
      CLAUDE_CODE_SUBAGENT_MODEL: model,
      // Context length for compaction. Claude Code's default is that of Anthropic's models; its minimum is 100,000.
      CLAUDE_CODE_AUTO_COMPACT_WINDOW: maxTokens?.toString(),
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      // These variables would redirect Claude Code to other endpoints.
      ANTHROPIC_API_KEY: undefined,
      CLAUDE_CODE_USE_ANTHROPIC_AWS: undefined,
      CLAUDE_CODE_USE_BEDROCK: undefined,
      CLAUDE_CODE_USE_FOUNDRY: undefined,
      CLAUDE_CODE_USE_GATEWAY: undefined,
      CLAUDE_CODE_USE_MANTLE: undefined,
      CLAUDE_CODE_USE_VERTEX: undefined,
    }),
    args: () => [],
  },
  {
    name: "codex",
    from: "@openai/codex",
    env: ({ key }) => ({ [KEY_VARIABLE]: key }),
    // The values of these arguments are TOML, which writes basic strings and arrays as JSON does.
    args: ({ url, model, maxTokens }) =>
      Object.entries({
        model,
        review_model: model,
        model_provider: PROVIDER,
        [`model_providers.${PROVIDER}.name`]: PROVIDER,
        [`model_providers.${PROVIDER}.base_url`]: `${url}/v1`,
        [`model_providers.${PROVIDER}.wire_api`]: "responses",
        [`model_providers.${PROVIDER}.env_key`]: KEY_VARIABLE,
        ...(maxTokens !== undefined && { model_context_window: maxTokens }),
      }).flatMap(([name, value]) => ["-c", `${name}=${JSON.stringify(value)}`]),
  },
  {
    name: "opencode",
    from: "opencode-ai",
    env: ({ url, key, model, maxTokens }) => ({
      [KEY_VARIABLE]: key,
      OPENCODE_CONFIG_CONTENT: JSON.stringify({
        model: `${PROVIDER}/${model}`,
        small_model: `${PROVIDER}/${model}`,
        provider: {
          [PROVIDER]: {
            npm: "@ai-sdk/openai-compatible",
            name: PROVIDER,
            options: { baseURL: `${url}/v1`, apiKey: `{env:${KEY_VARIABLE}}` },
            models: {
              [model]: {
                name: model,
                tool_call: true,
                ...(maxTokens !== undefined && {
                  limit: { context: maxTokens, output: Math.min(MAX_ANSWER, maxTokens) },
                }),
              },
            },
          },
        },
      }),
    }),
    args: () => [],
  },
];
