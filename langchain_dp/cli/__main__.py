"""``python -m langchain_dp.cli``: the command line where no script is installed."""

from langchain_dp.cli import main

raise SystemExit(main())
