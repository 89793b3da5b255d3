// The prompts: twenty built-in ones of 5 to about 400 tokens, or the lines of a file. Their order mixes lengths and
// kinds, so that the first few are representative.
import { readFileSync } from "node:fs";
import { UsageError } from "../config/usage-error.ts";

const lighthouse = `The lighthouse at Skerry Point was built in 1811 of granite that had to be carried over \
the sand at low water, forty stones a tide, by oxen that were afraid of the sea. Its first lamp burned \
whale oil and could be seen for eleven miles; its second burned paraffin and could be seen for sixteen. \
Three families of keepers lived there in turn, and each left something behind: the Rennies a walled \
garden that faced away from the wind, the Moirs a library of two hundred books with swollen pages, the \
Hays a row of pencil marks on the kitchen door that show how tall each of nine children was on each \
first of January. In 1968 the lamp was made electric, and in 1986 the last keeper locked the door behind \
him and left the key with the harbour master, who has it still.`;

const minutes = `Minutes of the meeting of the gardens committee, 14 March. Present: Ada (chair), Bram, \
Chiara, Dmitri, Esther. Apologies: Farid. 1. The minutes of the last meeting were read and agreed. 2. \
Water. Bram reported that the rain tanks behind the shed were full for the first time since October, and \
that the pump had been mended with a part that cost 34 euros. He asked that nobody use the hose on Sunday \
mornings, when the neighbours sleep. Agreed. 3. Compost. Chiara said that somebody had put cooked rice and \
the bones of a fish into the third heap, and that there were rats. After some discussion it was decided to \
buy a closed bin (about 120 euros), to hang a list of what may go into it on the door, and to ask the two \
schools to tell the children. Dmitri did not agree about the list, which he called insulting, and asked that \
this be written down. 4. Plot 17. It has not been worked since last summer, and there are eleven names on \
the waiting list. Esther has written to its holder twice. The committee will wait until the end of April, \
and then give it to the first on the list. 5. The spring fair will be on the second Saturday of May. Ada \
brings tables, Farid was volunteered for the music in his absence, and the price of a cup of coffee stays at \
one euro. 6. Any other business. Bram has found a wedding ring in the bed of leeks; it has "1974" inside. A \
note goes on the board. The next meeting is on 11 April at seven.`;

const code = `class RingBuffer:
    def __init__(self, capacity):
        self.items = [None] * capacity
        self.start = 0
        self.count = 0

    def push(self, item):
        end = (self.start + self.count) % len(self.items)
        self.items[end] = item
        if self.count == len(self.items):
            self.start = (self.start + 1) % len(self.items)
        else:
            self.count += 1

    def pop(self):
        if self.count == 0:
            raise IndexError("pop from an empty buffer")
        item = self.items[self.start]
        self.start = (self.start + 1) % len(self.items)
        self.count -= 1
        return item`;

const recipe = `Lentil soup for six. Rinse 400 g of brown lentils. Soften two onions, three carrots and two \
sticks of celery, all cut small, in four spoons of olive oil over a low flame for a quarter of an hour. Add \
three cloves of garlic, a spoon of cumin and half a spoon of smoked paprika, and stir for a minute. Add the \
lentils, a tin of tomatoes, a bay leaf and a litre and a half of water. Simmer for forty minutes, salt it at \
the end, and finish it with the juice of half a lemon and a handful of parsley.`;

const accident = `Witness statement. I was waiting at the crossing by the bakery at about twenty to nine. It \
had rained and the road was wet. A red delivery van came down the hill, not fast. A cyclist without a helmet \
came out of the lane on the left with her head down because of the wind. The van braked and slid, and its \
mirror touched the handlebar. She fell on her side and got up at once, and said that she was fine. The driver \
got out and gave her his card. He had a parcel in his other hand the whole time.`;

export const builtInPrompts: readonly string[] = [
  "What is a tide?",
  `${recipe} Rewrite this recipe for two people, and say what can be left out.`,
  "Explain to a child of seven why the sky is blue in the day and red in the evening.",
  `${lighthouse} Write the letter that the last keeper left for whoever opens the door next.`,
  "List ten uses for an empty jam jar.",
  "Write a limerick about a cat who wanted to be a lawyer.",
  `Here is a class in Python:\n\n${code}\n\nFind out whether it is right when the buffer is full, add a method that returns all items in order, and write three tests.`,
  "A train leaves Lyon at 14:05 and covers the 430 km to Paris in one hour and 58 minutes. What is its mean speed in kilometres an hour? Show each step.",
  "Translate into French: the meeting has been moved to Thursday, please bring your own chair.",
  `${minutes}\n\nSummarise these minutes in five lines for those who could not come, then list who has to do what by when.`,
  "Compare the bicycle and the tram as ways to get to work in a city of half a million people. Speak of cost, time, weather, health and noise, and come to a conclusion.",
  "Good morning, how are you?",
  `${accident} Which facts in this statement matter to an insurer, which do not, and what would you ask the witness?`,
  "Write a SQL query that gives, for each customer, the date and the amount of their latest order, from the tables customers(id, name) and orders(id, customer_id, placed_at, amount). Customers without orders are to be in it too.",
  "Why did the Roman republic fall?",
  `${lighthouse}\n\n${recipe}\n\nThe two texts above come from the same village paper. Write the notice that stood between them.`,
  "Name the planets from the sun outwards, each with one sentence about it that most people do not know.",
  "My sourdough bread has been flat and sour for weeks, although I feed the starter every day with the same flour. The kitchen is cold, about 16 degrees, and I let the dough rise over night. What should I change first, and why?",
  "Write the opening paragraph of a detective story that is set in a botanical garden in winter. The detective is a retired teacher of geography, the victim is alive, and nothing may be said about the weather.",
  "Describe how a four-stroke engine works: intake, compression, combustion, exhaust. Then say which of these an electric motor has no need of, what that means for the gearbox, and why a driver notices the difference most when the light turns green.",
];

/** A shared prefix of about 300 tokens. */
export const sharedText = `${lighthouse}\n\n${accident}`;

/** A prompt of about 1,300 tokens. */
export const longText = [minutes, lighthouse, code, recipe, accident, minutes].join("\n\n");

/** Reads prompts from a JSON array of texts, or from a file with one text per line. */
export function readPrompts(path: string): string[] {
  const prompts = parsed(path);
  if (Array.isArray(prompts) && prompts.length > 0 && prompts.every(isText)) return prompts;
  throw new UsageError(`${path}: expected one prompt per line, or a JSON array of texts`);
}

function parsed(path: string): unknown {
  try {
    const text = readFileSync(path, "utf8");
    if (path.endsWith(".json")) return JSON.parse(text);
    return text.split("\n").filter((line) => line.trim() !== "");
  } catch (error) {
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
}

function isText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}
