// The requests that run and wait, and the last that have ended.
import { useState } from "hono/jsx/dom";
import { Problem } from "../form.tsx";
import { oneDigit, seconds, whole } from "../numbers.ts";
import { ask, messageOf } from "../server.ts";
import { Wide } from "../wide.tsx";
import { colourOf } from "./canvas.tsx";
import { type Ended, follow, type Running, type Story } from "./feed.ts";

/** Ids are long; their ends differ. */
const short = (id: string) => (id.length > 14 ? `…${id.slice(-12)}` : id);

function Id({ id }: { id: string }) {
  return (
    <span class="mono" title={id}>
      <span class="dot" style={{ background: colourOf(id) }} /> {short(id)}
    </span>
  );
}

type Props = { requests: readonly Running[]; followed: string | undefined };

export function RequestTable({ requests, followed }: Props) {
  const [problem, setProblem] = useState("");
  const cancel = (id: string) => {
    setProblem("");
    ask("/requests/cancel", { body: { id } }).catch((error) => setProblem(messageOf(error)));
  };
  return (
    <>
      <Problem text={problem} />
      <Wide label="Table of requests">
        <table>
          <thead>
            <tr>
              <th scope="col">Request</th>
              <th scope="col">State</th>
              <th scope="col">Priority</th>
              <th scope="col" class="right">
                Standing
              </th>
              <th scope="col" class="right">
                Age
              </th>
              <th scope="col" class="right">
                Prompt
              </th>
              <th scope="col" class="right">
                Cached
              </th>
              <th scope="col" class="right">
                Generated
              </th>
              <th scope="col" class="right">
                Blocks
              </th>
              <th scope="col">
                <span class="hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {requests.map((request) => (
              <tr key={`${request.id} ${request.index}`}>
                <td>
                  <Id id={request.id} />
                </td>
                <td>
                  <span class={`tag ${request.state}`}>{request.state}</span>
                  {request.preemptions > 0 && ` preempted ${request.preemptions}×`}
                </td>
                <td>{request.tier}</td>
                <td class="right">{oneDigit(request.standing)}</td>
                <td class="right">{seconds(request.age_ms)}</td>
                <td class="right">{whole(request.prompt_tokens)}</td>
                <td class="right">{whole(request.cached_tokens)}</td>
                <td class="right">{whole(request.generated_tokens)}</td>
                <td class="right">{whole(request.blocks)}</td>
                <td class="right">
                  <button
                    type="button"
                    class="quiet"
                    aria-pressed={request.id === followed}
                    aria-label={`Follow ${request.id}`}
                    onClick={() => follow(request.id === followed ? undefined : request.id)}
                  >
                    Follow
                  </button>
                  <button
                    type="button"
                    class="quiet"
                    aria-label={`Cancel ${request.id}`}
                    onClick={() => cancel(request.id)}
                  >
                    Cancel
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {requests.length === 0 && <p class="note">No request runs or waits.</p>}
    </>
  );
}

export function EndedTable({ ended }: { ended: readonly Ended[] }) {
  if (ended.length === 0) return <p class="note">None since this page was opened.</p>;
  return (
    <Wide label="Table of ended requests">
      <table>
        <thead>
          <tr>
            <th scope="col">Request</th>
            <th scope="col">Outcome</th>
            <th scope="col" class="right">
              In queue
            </th>
            <th scope="col" class="right">
              First token
            </th>
            <th scope="col" class="right">
              Whole
            </th>
            <th scope="col" class="right">
              Prompt (cached)
            </th>
            <th scope="col" class="right">
              Generated
            </th>
          </tr>
        </thead>
        <tbody>
          {ended.map((each) => (
            <tr key={each.id}>
              <td>
                <Id id={each.id} />
              </td>
              <td>
                <span class={`tag ${each.outcome}`}>{each.outcome}</span>{" "}
                {each.error ?? each.finish}
              </td>
              <td class="right">{optional(each.queue_ms, seconds)}</td>
              <td class="right">{optional(each.ttft_ms, seconds)}</td>
              <td class="right">{seconds(each.ms)}</td>
              <td class="right">
                {optional(each.prompt_tokens, whole)} ({optional(each.cached_tokens, whole)})
              </td>
              <td class="right">{optional(each.completion_tokens, whole)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

const optional = (value: number | undefined, text: (value: number) => string) =>
  value === undefined ? "–" : text(value);

export function StoryView({ story }: { story: Story }) {
  const [first] = story.lines;
  return (
    <section class="card" aria-label="The followed request">
      <header>
        <h2>
          <Id id={story.id} />
        </h2>
        <button type="button" class="quiet" onClick={() => follow(undefined)}>
          Close
        </button>
      </header>
      <p class="note">
        {whole(story.steps)} steps seen, {whole(story.promptTokens)} prompt tokens,{" "}
        {whole(story.decodeTokens)} decoded
      </p>
      <ol class="story">
        {story.lines.map(({ atMs, text }) => (
          <li>
            <span class="note">+{seconds(atMs - first!.atMs)}</span> {text}
          </li>
        ))}
      </ol>
    </section>
  );
}
