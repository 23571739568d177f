"""The app of FastAPI as it is, in a node: callboard serve mounted.py"""

from before import app

import callboard as cb

cb.asgi("/api", app)
