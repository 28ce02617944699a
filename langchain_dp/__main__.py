"""``python -m langchain_dp``: the command line where no script is installed."""

from langchain_dp.cli import main

raise SystemExit(main())
