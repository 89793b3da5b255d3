  // Which tokens of its sequence a group goes over. With OWN the newest is not in its block yet: it comes last.
  //
  // Before this: split, length.
  const int oldest = WINDOW > 0 && length > WINDOW ? length - WINDOW : 0;
  const int share = (length - OWN - oldest + SPLITS - 1) / SPLITS;
  const int begin = oldest + split * share;
  const int end = begin + share < length - OWN ? begin + share : length - OWN;
