// Runs a parsed Jinja template on a budget. Templates come with models and are untrusted: each ends after a bounded
// amount of work and sees only the values passed to it.
//
// The library evaluates every node through `evaluate`, operands before operations, so the cost of an operation is
// charged when its last operand is known, before the operation runs.
import { type Environment, Interpreter, type parse } from "@huggingface/jinja";
import {
  asNumber,
  attribute,
  filtered,
  keyOf,
  ownFilters,
  pythonText,
  runtimeValue,
  takesText,
  type Value,
  writtenNodes,
} from "./template-values.ts";

type Program = ReturnType<typeof parse>;
type Statement = Parameters<Interpreter["evaluate"]>[0];

/** The fields of a node used here; the library does not export its node types. */
interface Node {
  type: string;
  test?: Node;
  value?: unknown;
  iterable?: Node;
  lhs?: Node;
  left?: Node;
  object?: Node;
  property?: Node;
  assignee?: Node;
  operator?: { value: string };
  operand?: Node;
  computed?: boolean;
  negate?: boolean;
  filter?: Node;
  callee?: Node;
  args?: readonly Node[];
}

/** A node under evaluation, with its operands so far. */
interface Frame {
  node: Node;
  depth: number;
  operands: Value[];
  /** The object of a method call. */
  receiver: Value | undefined;
  /** Whether the call's macro is running: nodes evaluated now are the macro's output. */
  called: boolean;
}

export class BudgetExceeded extends Error {}

export interface CompiledTemplate {
  program: Program;
  /** Nodes whose values are written to the output. */
  written: ReadonlySet<object>;
  /** Length of the source. */
  length: number;
}

export function compiledTemplate(program: Program, length: number): CompiledTemplate {
  return { program, written: writtenNodes(program), length };
}

// Costs are in steps: a step is one evaluated node, about 100 ns. The other costs were measured relative to it.
const CHARS_PER_STEP = 64;
const SLICED_CHARS_PER_STEP = 2;
const LOOP_TURN = 16;
const MISSING_VARIABLE = 64;
const LOOP_CONTROL = 64;
const SOURCE_CHARS_PER_STEP = 8;
/** Cost factor of sorting: each item is compared with several others, possibly over their whole length. */
const SORT_FACTOR = 32;
const MAX_DEPTH = 1_000;

const FREE_FILTERS: ReadonlySet<string> = new Set(["length", "first", "last", "default", "safe"]);
/** Filters and tests that serialize or compare a value recursively. */
const DEEP_FILTERS: ReadonlySet<string> = new Set(["tojson", "string", "join", "sort", "dictsort"]);

export class BudgetedInterpreter extends Interpreter {
  #left: number;
  #frame: Frame | undefined;
  readonly #sourceCost: number;
  readonly #written: ReadonlySet<object>;

  constructor(environment: Environment, steps: number, { written, length }: CompiledTemplate) {
    super(environment);
    this.#left = steps;
    this.#written = written;
    this.#sourceCost = length / SOURCE_CHARS_PER_STEP;
  }

  spend(steps: number): void {
    this.#left -= steps;
    // Written so that NaN fails too.
    if (!(this.#left >= 0)) throw new BudgetExceeded("it exceeds its budget of work");
  }

  override evaluate(statement: Statement, environment: Environment): Value {
    if (!statement) return super.evaluate(statement, environment);
    const node = statement as unknown as Node;
    const parent = this.#frame;
    const depth = parent ? parent.depth + 1 : 0;
    if (depth > MAX_DEPTH) throw new BudgetExceeded("it nests too deeply");
    this.#chargeNode(node, depth);
    const frame: Frame = { node, depth, operands: [], receiver: undefined, called: false };
    this.#frame = frame;
    try {
      const found = this.#ownFilter(node, environment) ?? super.evaluate(statement, environment);
      const value = this.#corrected(frame, found);
      this.#chargeResult(node, value);
      const used = parent ? this.#inPlace(parent, node, value) : value;
      if (parent) this.#chargeUse(parent, frame, used);
      return this.#written.has(node) ? this.#asWritten(used) : used;
    } finally {
      this.#frame = parent;
    }
  }

  /** Applies a filter that the library lacks; returns undefined if the library has to apply it. */
  #ownFilter(node: Node, environment: Environment): Value | undefined {
    if (node.type !== "FilterExpression") return undefined;
    const own = ownFilters.get(filterName(node));
    if (!own) return undefined;
    const valueOf = (each: unknown) => this.evaluate(each as Statement, environment);
    const operand = valueOf(node.operand);
    const args = (node.filter?.args ?? []).map(valueOf);
    for (const arg of args) this.#chargeWhole(arg);
    const made = own(operand, args);
    // Without a result, the library applies the filter and evaluates the operands again: their record is dropped.
    if (!made) this.#frame!.operands.length = 0;
    return made;
  }

  /** Replaces the library's result by Python's where they differ and models' templates depend on it. */
  #corrected({ node, operands, receiver }: Frame, found: Value | undefined): Value {
    // For an empty list, the library's filters `first` and `last` return JavaScript's undefined.
    const value = asNumber(found ?? runtimeValue(undefined));
    const [first] = operands;
    if (!first) return value;
    if (node.type === "UnaryExpression" && node.operator?.value === "not") {
      // The library treats an empty list or mapping as true.
      return runtimeValue(!first.__bool__().value);
    }
    if (node.type === "TestExpression" && node.test?.value === "iterable") {
      const isIterable = first.type === "ObjectValue" || first.type === "UndefinedValue";
      return isIterable ? runtimeValue(!node.negate) : value;
    }
    if (node.type === "MemberExpression" && !node.computed && node.property) {
      const spend = (chars: number) => this.spend(chars / CHARS_PER_STEP);
      return attribute(first, String(node.property.value), value, spend);
    }
    return stripped(node, first, receiver, value);
  }

  /** Converts an operand of `parent` as Python's operation would. */
  #inPlace({ node: parent, operands }: Frame, child: Node, value: Value): Value {
    switch (parent.type) {
      case "FilterExpression": {
        if (child !== parent.operand) return value;
        const filter = filterName(parent);
        return takesText(filter, value) ? this.#text(value) : filtered(filter, value);
      }
      case "BinaryExpression":
        if (parent.operator?.value === "~") return this.#text(value);
        // The library throws on a membership test of a list in a list, so the tested list is disguised as a text.
        return isMember(parent, child) && value.type === "ArrayValue" ? keyOf(value) : value;
      case "For":
        if (child !== parent.iterable && child !== parent.iterable?.lhs) return value;
        if (value.type === "UndefinedValue") return runtimeValue([]);
        if (value.type !== "StringValue") return value;
        this.spend(LOOP_TURN * charsIn(value));
        return runtimeValue(Array.from(String(value.value)));
      case "ObjectLiteral": {
        const isKey = (parent.value as Map<unknown, unknown>).has(child);
        return isKey && value.type === "IntegerValue" ? keyOf(value) : value;
      }
      case "MemberExpression": {
        const isKey = child === parent.property && operands[0]?.type === "ObjectValue";
        return isKey && value.type !== "StringValue" ? keyOf(value) : value;
      }
      default:
        return value;
    }
  }

  #text(value: Value): Value {
    this.#chargeWhole(value);
    return value.type === "StringValue" ? value : runtimeValue(pythonText(value));
  }

  #asWritten(value: Value): Value {
    const isOther = ["ArrayValue", "ObjectValue", "TupleValue", "BooleanValue"].includes(
      value.type,
    );
    return isOther ? this.#text(value) : value;
  }

  #chargeNode(node: Node, depth: number): void {
    switch (node.type) {
      case "Identifier":
        // Variables are looked up from the innermost scope outward, and each level of nesting may have a scope.
        this.spend(1 + depth / 16);
        break;
      case "Break":
      case "Continue":
        this.spend(LOOP_CONTROL);
        break;
      case "Macro":
      case "CallStatement":
        // The library scans the body of a macro or call block on every evaluation.
        this.spend(this.#sourceCost);
        break;
      case "FilterStatement":
        throw new Error("filter blocks are not supported");
      default:
        this.spend(1);
    }
  }

  #chargeResult(node: Node, value: Value): void {
    if (node.type === "Identifier" && value.type === "UndefinedValue") this.spend(MISSING_VARIABLE);
    if (node.type === "CallExpression" || node.type === "FilterExpression") {
      this.spend(itemsIn(value));
    }
  }

  /** Charges for the operation that `parent` applies to the value of `child`. */
  #chargeUse(parent: Frame, child: Frame, value: Value): void {
    const { node, operands } = parent;
    operands.push(value);
    switch (node.type) {
      case "For":
        if (child.node === node.iterable || child.node === node.iterable?.lhs) {
          this.spend(LOOP_TURN * itemsIn(value));
        } else if (child.node !== node.iterable?.test) this.#chargeWhole(value);
        break;
      case "If":
        if (child.node !== node.test) this.#chargeWhole(value);
        break;
      case "Set":
        // Charges the block of `{% set x %}...{% endset %}`: the child besides the value and the target's object.
        if (child.node !== node.value && child.node !== node.assignee?.object) {
          this.#chargeWhole(value);
        }
        break;
      case "Program":
      case "CallStatement":
        this.#chargeWhole(value);
        break;
      case "MemberExpression":
        parent.receiver ??= value;
        // Picking a member is free; a slice is copied character by character.
        if (node.property?.type === "SliceExpression") {
          this.spend(itemsIn(value) + charsIn(value) / SLICED_CHARS_PER_STEP);
        }
        break;
      case "CallExpression":
        if (parent.called) this.#chargeWhole(value);
        else if (child.node === node.callee) {
          parent.called = true;
          parent.receiver = child.receiver;
          this.#chargeCall(child, operands.slice(0, -1));
        }
        break;
      case "FilterExpression":
        this.#chargeFilter(node, operands);
        break;
      case "BinaryExpression": {
        const operator = node.operator?.value;
        if (operator === "+" || operator === "~") this.#chargeWhole(value);
        else if (operator !== "and" && operator !== "or") this.spend(sizeOf(value));
        break;
      }
      case "TestExpression":
        this.spend(sizeOf(value));
        break;
    }
  }

  #chargeCall(callee: Frame, args: readonly Value[]): void {
    const receiver = callee.receiver;
    for (const arg of args) this.spend(sizeOf(arg));
    if (!receiver) return;
    this.spend(sizeOf(receiver));
    if (callee.node.property?.value === "replace") this.#chargeReplace(receiver, args);
    if (callee.node.property?.value === "dictsort") this.#chargeWhole(receiver, SORT_FACTOR);
  }

  #chargeFilter(node: Node, operands: readonly Value[]): void {
    const args = node.filter?.args ?? [];
    if (operands.length < 1 + args.length) return;
    const name = filterName(node);
    if (FREE_FILTERS.has(name)) return;
    const [operand, ...values] = operands as [Value, ...Value[]];
    if (name === "replace") this.#chargeReplace(operand, values);
    const chars = values.reduce((sum, value) => sum + separatorCharsIn(value), 0) / CHARS_PER_STEP;
    const width = values.reduce((sum, value) => sum + widthOf(value), 0) / CHARS_PER_STEP;
    if (DEEP_FILTERS.has(name)) {
      const factor = name.endsWith("sort") ? SORT_FACTOR : 1;
      this.#chargeWhole(operand, factor * (1 + chars), width);
    }
    // Charges each filter like `indent`, the most expensive: it may add the width once per character of the text.
    this.spend(sizeOf(operand) * (1 + chars + width * CHARS_PER_STEP));
    this.spend(itemsIn(operand) * chars);
  }

  /** Charges for a replacement in the worst case: the pattern matches everywhere. */
  #chargeReplace(text: Value, [from, to]: readonly Value[]): void {
    const length = charsIn(text);
    const matches = from ? length / Math.max(1, charsIn(from)) + 1 : 0;
    this.spend((length + matches * (to ? charsIn(to) : 0)) / CHARS_PER_STEP);
  }

  /** Charges for a value recursively; shared parts count each time they would be written. */
  #chargeWhole(value: Value, factor = 1, perLevel = 0, depth = 0): void {
    if (value.type === "FunctionValue") throw new Error("a function cannot be written out");
    this.spend(factor * (sizeOf(value) + depth * perLevel));
    const inside: unknown = value.value;
    if (inside instanceof Map) {
      for (const [key, item] of inside as Map<string, Value>) {
        // The type says that keys are strings, but a key that `keyOf` made may be a number.
        this.spend((factor * String(key).length) / CHARS_PER_STEP);
        this.#chargeWhole(item, factor, perLevel, depth + 1);
      }
    } else if (Array.isArray(inside)) {
      for (const item of inside as Value[]) this.#chargeWhole(item, factor, perLevel, depth + 1);
    }
  }
}

function isMember({ operator, left }: Node, child: Node): boolean {
  return child === left && (operator?.value === "in" || operator?.value === "not in");
}

function filterName({ filter }: Node): string {
  return String(filter?.callee?.value ?? filter?.value);
}

/** Strips the given characters; the library always strips whitespace. */
function stripped(node: Node, first: Value, receiver: Value | undefined, value: Value): Value {
  const chars: unknown = first.value;
  const text: unknown = receiver?.value;
  if (node.type !== "CallExpression" || typeof chars !== "string" || typeof text !== "string") {
    return value;
  }
  const method = node.callee?.property?.value;
  const fromStart = method === "strip" || method === "lstrip";
  const fromEnd = method === "strip" || method === "rstrip";
  return fromStart || fromEnd ? runtimeValue(strip(text, chars, fromStart, fromEnd)) : value;
}

function strip(text: string, chars: string, fromStart: boolean, fromEnd: boolean): string {
  const stripped = new Set(chars);
  let start = 0;
  let end = text.length;
  while (fromStart && start < end && stripped.has(text[start]!)) start++;
  while (fromEnd && end > start && stripped.has(text[end - 1]!)) end--;
  return text.slice(start, end);
}

function charsIn(value: Value): number {
  return value.type === "StringValue" ? String(value.value).length : 0;
}

/** Length of a separator, or of a pair of separators. */
function separatorCharsIn(value: Value): number {
  const inside: unknown = value.value;
  const pair: Value[] = Array.isArray(inside) ? inside.slice(0, 2) : [value];
  return pair.reduce((sum, item) => sum + charsIn(item), 0);
}

function itemsIn(value: Value): number {
  const inside: unknown = value.value;
  if (inside instanceof Map) return inside.size;
  return Array.isArray(inside) ? inside.length : 0;
}

function widthOf(value: Value): number {
  return value.type === "IntegerValue" ? Math.abs(Number(value.value)) : 0;
}

function sizeOf(value: Value): number {
  const inside: unknown = value.value;
  return typeof inside === "string" ? inside.length / CHARS_PER_STEP : itemsIn(value);
}
