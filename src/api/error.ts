// The one shape of every refusal and failure, as OpenAI has it.
import { z } from "zod";

export const ErrorResponse = z
  .object({
    error: z.object({
      message: z.string().describe("What is wrong, in one line."),
      type: z.string().describe("The kind of error, such as invalid_request_error."),
      param: z.string().nullable().describe("The parameter at fault, as a dotted path."),
      code: z.string().nullable().describe("What a program may tell errors apart by."),
    }),
  })
  .meta({ id: "ErrorResponse" });
export type ErrorResponse = z.infer<typeof ErrorResponse>;
