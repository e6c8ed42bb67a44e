"""What a benchmark says where ratios that are promised are not reached."""


def shortfall(found):
    """One sentence that names what fell short, or None where nothing did.

    found: (what is promised, ratio measured, ratio promised) each; a promise of None is none. The answer is meant for
    sys.exit: None ends with status 0, a sentence is written to stderr and ends with status 1.
    """
    missed = [f"{what} reached {ratio:.4g}, promised {promised:g}" for what, ratio, promised in found
              if promised is not None and not ratio >= promised]  # NaN reaches nothing
    return f"fell short: {'; '.join(missed)}." if missed else None
