// Tokens that no text of the tiny model has, for faults of the engine.
export const REFUSED_TOKEN = 300;
export const DEADLY_TOKEN = 301;
