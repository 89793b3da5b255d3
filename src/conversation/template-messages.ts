// Converts a chat to the input of the model's template.
import type { ServedModel } from "../serve/models.ts";
import type { ChatInput } from "../text/template/template.ts";
import { formatOf } from "../tools/formats.ts";
import { withInstructions, withWrittenCalls } from "../tools/instructions.ts";
import type { Tool } from "../tools/syntax/format.ts";
import { jsonOrText } from "../tools/syntax/json-call.ts";
import type { Call, Chat, Message, OfferedTool } from "./conversation.ts";
import { NoChatTemplateError } from "./conversation-error.ts";
import { type TextMessage, withSystemFirst } from "./late-system.ts";

/** Builds the template's input. Parts of messages that the template does not support become text. */
export function chatInput(model: ServedModel, chat: Chat): ChatInput {
  const { text } = model;
  if (!text.chat) throw new NoChatTemplateError();
  const { continueFinalMessage = false, addGenerationPrompt = !continueFinalMessage } = chat;
  const { effort, thinks } = chat;
  return {
    ...messagesAndTools(model, chat),
    continueFinalMessage,
    addGenerationPrompt,
    kwargs: {
      ...(effort !== undefined && { reasoning_effort: effort }),
      ...(thinks !== undefined && { enable_thinking: thinks }),
      ...chat.templateKwargs,
    },
  };
}

function messagesAndTools(model: ServedModel, chat: Chat): Pick<ChatInput, "messages" | "tools"> {
  const { text } = model;
  const { format, knowsTools, knowsCalls } = formatOf(text.template);
  // Few templates know the role developer, which replaced system.
  const roles = text.knowsRole("developer") ? {} : { developer: "system" };
  const messages = withSystemFirst(
    chat.messages.map((message) => templateMessage(message, roles)),
    text,
  );
  const tools = (chat.toolChoice === "none" ? [] : chat.tools).map(shownTool);
  const hasCalls = messages.some(({ role, tool_calls }) => role === "tool" || tool_calls);
  if (!knowsTools && (tools.length > 0 || hasCalls)) {
    return { messages: withInstructions(messages, tools, format) };
  }
  return {
    messages: hasCalls && !knowsCalls ? withWrittenCalls(messages, format) : messages,
    ...(tools.length > 0 && { tools: tools.map((tool) => ({ type: "function", function: tool })) }),
  };
}

function shownTool({ name, description, parameters, shownParameters }: OfferedTool): Tool {
  return { name, description, parameters: shownParameters ?? parameters };
}

/** Returns a thought under both names that templates use; templates decide which thoughts to keep. */
function withThoughtNames(thought: string): Pick<TextMessage, string> {
  return { reasoning_content: thought, reasoning: thought };
}

/** Converts a message: templates expect the text as one string, and the arguments of calls as values. */
function templateMessage(
  { role, parts, name, refusal, callId }: Message,
  roles: Partial<Record<Message["role"], string>>,
): TextMessage {
  const texts: string[] = [];
  const thoughts: string[] = [];
  const calls: Call[] = [];
  for (const part of parts) {
    if (part.kind === "text") texts.push(part.text);
    else if (part.kind === "thought") thoughts.push(part.text);
    else calls.push(part);
  }
  return {
    role: roles[role] ?? role,
    content: texts.join("\n"),
    ...(name !== undefined && { name }),
    ...(refusal !== undefined && { refusal }),
    ...(thoughts.length > 0 && withThoughtNames(thoughts.join("\n"))),
    ...(callId !== undefined && { tool_call_id: callId }),
    ...(calls.length > 0 && {
      tool_calls: calls.map(({ id, name, arguments: given }) => ({
        ...(id !== undefined && { id }),
        type: "function",
        function: { name, arguments: jsonOrText(given) },
      })),
    }),
  };
}
