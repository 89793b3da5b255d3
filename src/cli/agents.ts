// The coding agents that `launch` starts: how each is pointed at a server, by variables and arguments only, so that
// none of the user's files changes. One row for each agent.

/** What an agent needs to know of the server. */
export type AgentServer = {
  url: string;
  /** Any text where the server needs none. */
  key: string;
  model: string;
  /** The model's context, if it is known. */
  maxTokens: number | undefined;
};

export type Agent = {
  name: string;
  /** The npm package that it comes in. */
  from: string;
  /** Variables; undefined ones are removed. */
  env(server: AgentServer): Readonly<Record<string, string | undefined>>;
  /** Arguments before the user's own. */
  args(server: AgentServer): readonly string[];
};

/** An agent has this from its environment: other users of the machine can see arguments. */
const KEY_VARIABLE = "LAUNCH_API_KEY";
/** The name of the server in an agent's configuration. */
const PROVIDER = "mlx-serve";
/** Answers that opencode leaves room for in a context. */
const MAX_ANSWER = 8192;

export const agents: readonly Agent[] = [
  {
    name: "claude",
    from: "@anthropic-ai/claude-code",
    env: ({ url, key, model, maxTokens }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_AUTH_TOKEN: key,
      // It asks for other models in the background, for subagents and by their short names.
      ANTHROPIC_MODEL: model,
      ANTHROPIC_SMALL_FAST_MODEL: model,
      ANTHROPIC_DEFAULT_FABLE_MODEL: model,
      ANTHROPIC_DEFAULT_OPUS_MODEL: model,
      ANTHROPIC_DEFAULT_SONNET_MODEL: model,
      ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
      CLAUDE_CODE_SUBAGENT_MODEL: model,
      // Without it, a conversation is compacted for the context of Anthropic's models. It takes 100,000 for less.
      CLAUDE_CODE_AUTO_COMPACT_WINDOW: maxTokens?.toString(),
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      // These would send it elsewhere.
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
    // Values are TOML, whose strings, inline tables aside, are those of JSON.
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
